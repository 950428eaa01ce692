"""gpucheck: GPU diagnostics for everyone who uses PyTorch. The public Python is `gpucheck.api` alone."""

__version__ = "0.1.0"
