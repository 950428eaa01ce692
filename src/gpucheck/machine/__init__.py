"""The modules that read the world outside this process, one for each source."""
