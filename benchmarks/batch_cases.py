"""What the benchmarks of find-batch-size search, in the oracle as beside the peers."""

from __future__ import annotations

# The built-in models, by their names on the command line.
WORKLOADS = ("mlp", "convnet", "transformer")
# Memory is to be what limits: 4 GiB hold more of the smallest workload than the command's own cap allows.
CAP = 2**20
