"""`bench crossover`: from what size on a device is faster than this CPU, counting the copies and not counting them.

Both sides compute in float32 and every call is waited for, on the host's clock, in turn. The CPU uses every core that
it may. With the copies, inputs come from pageable memory and the result goes back there within the timed call.
"""
