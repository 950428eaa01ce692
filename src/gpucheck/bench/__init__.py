"""How fast: each file has its cases, its work and its judge."""
