"""The workloads of all commands: targets, inputs, steps and built-in models. `spec` does not import torch."""
