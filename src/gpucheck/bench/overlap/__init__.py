"""`bench overlap`: how much of a non-blocking copy hides behind compute.

Overlap = (copy + compute - both) / min(copy, compute), with as much compute as takes as long as the copy. 1: the copy
costs nothing beside the compute; 0: one waits for the other. It is not clamped.

All three are timed in turn on the host's clock, each until the device is done: a copy of pageable memory keeps the
host, and only there does that show. The copy is enqueued first, as a loader does that fetches the next batch.
"""
