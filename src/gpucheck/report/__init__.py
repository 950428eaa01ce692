"""What gpucheck knows and says: frozen data, to and from JSON, no I/O."""
