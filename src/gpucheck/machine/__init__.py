"""Adapters, one for each system outside this process."""
