"""The benchmarks: each package has its cases, its work and its judge."""
