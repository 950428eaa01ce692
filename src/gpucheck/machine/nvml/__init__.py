"""NVML: what is asked of it, in children that read it once or go on sampling. The only folder that imports pynvml."""
