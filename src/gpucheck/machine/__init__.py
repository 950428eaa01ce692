"""The doors: one module for each thing outside."""
