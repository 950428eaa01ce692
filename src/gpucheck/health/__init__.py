"""What is wrong, and what is there: devices, memory and the smoke checks."""
