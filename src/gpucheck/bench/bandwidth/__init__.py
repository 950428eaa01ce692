"""`bench bandwidth`: how fast a device reads and writes its own memory; on a CPU, the host's.

Bytes are counted as they move, both ways: `copy` of 1 GiB reads 1 GiB and writes 1 GiB. So count STREAM, cuda-samples'
bandwidthTest and a data sheet; nvbandwidth counts a copy within a device once and shows half of it.
"""
