"""The workloads of all commands: targets, their inputs and one step; built-in models. `spec` parses options
without importing torch."""
