"""`bench transfer`: how fast copies between host and device run, and whether they arrive."""
