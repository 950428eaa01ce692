"""Many nodes: the check of one node and its document, and the comparison of all nodes."""
