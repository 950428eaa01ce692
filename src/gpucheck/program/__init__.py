"""A program's use of the device: simulated tensors, the rules of operations, and the lines of source."""
