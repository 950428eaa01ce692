"""What a program does to the device: tensors that claim one, what an operation says to that, and whose line it was."""
