"""What stands on its own, beside the ladder: variables left over, and a small /dev/shm."""

from __future__ import annotations

from gpucheck import units
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.evidence import Evidence

# Variables of debuggers and profilers which slow down or change whatever uses CUDA, once they are left over: those that
# DCGM's software test looks for, and NVIDIA's later names for core dumps. Their values are nobody's business.
LEFT_OVER = (
    "NSIGHT_CUDA_DEBUGGER",
    "CUDA_INJECTION32_PATH",
    "CUDA_INJECTION64_PATH",
    "CUDA_AUTO_BOOST",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
    "CUDA_COREDUMP_FILE",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_PROFILE",
    "COMPUTE_PROFILE",
    "OPENCL_PROFILE",
)
# Docker gives a container 64 MiB, of which two workers' batches of images are more than enough to overflow it.
SMALL_SHM_BYTES = 2**30


def _launch_blocking(evidence: Evidence) -> Seen | None:
    value = evidence.value("CUDA_LAUNCH_BLOCKING")
    if value in (None, "", "0") or not evidence.is_nvidia_here:
        return None
    return Seen(f"CUDA_LAUNCH_BLOCKING={value}: every launch waits for its kernel", {"CUDA_LAUNCH_BLOCKING": value})


def _left_over(evidence: Evidence) -> Seen | None:
    names = [name for name in LEFT_OVER if name in evidence.variables]
    if not names or not evidence.is_nvidia_here:
        return None
    return Seen(f"set here: {', '.join(names)}", {"variables": names}, fix=f"unset {' '.join(names)}")


def _small_shm(evidence: Evidence) -> Seen | None:
    size = evidence.stack.shm_bytes
    if size is None or size >= SMALL_SHM_BYTES or not evidence.host.container or not evidence.is_nvidia_here:
        return None
    return Seen(f"/dev/shm has {units.capacity(size)}", {"shm_bytes": size})


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="environment.launch_blocking",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="CUDA_LAUNCH_BLOCKING makes every kernel wait",
        meaning="CUDA_LAUNCH_BLOCKING is for debugging: an error is then raised where it arises. Left over it makes "
        "everything slower, because the host and the device no longer work at the same time.",
        fix="unset CUDA_LAUNCH_BLOCKING",
        judge=_launch_blocking,
        source="CUDA C++ Programming Guide, environment variables",
    ),
    Condition(
        id="environment.left_over",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="variables of a debugger or a profiler are set",
        meaning="They load code into every process that uses CUDA, or change how it runs.",
        fix="unset them",
        judge=_left_over,
        source="DCGM, software test, bad environment variables",
    ),
    Condition(
        id="environment.small_shm",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="this container has little shared memory",
        meaning="A DataLoader's workers hand their batches over in /dev/shm. Where it is full they die with a bus "
        "error.",
        fix="start the container with --shm-size=8g or --ipc=host",
        judge=_small_shm,
        texts=(r"DataLoader worker \(pid.*\) is killed by signal: Bus error", r"insufficient shared memory \(shm\)"),
    ),
)
