"""gpucheck: GPU diagnostics for everyone who uses PyTorch. The only public Python API is `gpucheck.api`."""

__version__ = "0.1.0"
