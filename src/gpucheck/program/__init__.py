"""What a program of yours does to the device."""
