"""What `bench matmul` multiplies: what a device has, and the products that these mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpucheck import units
from gpucheck.bench.dtypes import DTYPES, Dtype, Support, support
from gpucheck.bench.matmul.options import MatmulOptions, Shape
from gpucheck.bench.matmul.product import KINDS, Kind, why_not
from gpucheck.errors import UsageError
from gpucheck.machine import host
from gpucheck.machine.accel import Accel
from gpucheck.work import freivalds

# 8192 fills the largest GPU of today (an H200 works on it for 1.4 ms in bfloat16), 4096 shows what smaller work gets;
# the largest is not always the fastest (an L4 is faster at 2048 than at 10240). A CPU core needs 0.3 s for 2048.
DEFAULT_SIZES = {"accelerator": (4096, 8192), "cpu": (1024, 2048)}
# What a CPU runs without being asked: the others would take the time of these.
DEFAULT_ON_CPU = frozenset({"float32", "float16", "bfloat16"})
# CUDA C++ Programming Guide, "Arithmetic Instructions": 32 or more results of float64 per clock and SM. Others have 2
# to 4, and one large product would take the whole time.
FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
# With --cold the sets together are more than this many last-level caches (CUTLASS's guide to measuring products).
COLD_FACTOR = 2
# Where the size of the cache is not told: no smaller than any cache in front of a device's memory (256 MiB, MI300X).
ASSUMED_CACHE_BYTES = 256 * units.MIB
# Small products would need more sets than it is worth to make; with fewer they are not called cold.
MOST_SETS = 1024


@dataclass(frozen=True, slots=True)
class Case:
    """One product to time. It runs on `sets` of equal matrices in turn; `cold` where these are more than the cache.

    `rotation` is what the record tells of that, beside the sets; empty where nothing was asked.
    """

    dtype: Dtype
    shape: Shape
    support: Support
    sets: int = 1
    cold: bool = False
    rotation: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def kind(self) -> Kind:
        """How products of its dtype are made."""
        return KINDS[self.dtype]

    @property
    def precision(self) -> str:
        """The precision in which the multiplier is asked to see its operands."""
        return self.dtype if self.dtype == "tf32" else self.kind.operand

    @property
    def elements(self) -> tuple[int, int, int]:
        """Elements of A, of B and of the result."""
        m, n, k = self.shape
        return m * k, k * n, m * n

    @property
    def set_bytes(self) -> int:
        """What one set of its three matrices takes."""
        return sum(count * size for count, size in zip(self.elements, self.kind.itemsizes, strict=True))

    @property
    def bytes(self) -> int:
        """What it takes, with its check."""
        return needed_bytes(self.kind, self.shape, self.sets)

    @property
    def label(self) -> str:
        """The case in words."""
        return f"{self.dtype} {'x'.join(map(str, self.shape))}"


def needed_bytes(kind: Kind, shape: Shape, sets: int = 1) -> int:
    """What a row takes: its matrices, a copy of the first result, and a byte for each element that is compared with it
    or, when that is over, what its check takes."""
    m, n, k = shape
    of_a, of_b, of_result = kind.itemsizes
    matrices = m * k * of_a + k * n * of_b + m * n * of_result
    return sets * matrices + m * n * of_result + max(m * n, freivalds.extra_bytes(m, n, k))


def _by_default(dtype: Dtype, has: Support, accel: Accel) -> bool:
    """Whether a dtype runs without being asked for: what the device really has, and not at a crawl."""
    if has.kind != "native":
        return False
    if accel.is_cpu:
        return dtype in DEFAULT_ON_CPU
    return dtype != "float64" or accel.kind != "cuda" or accel.compute_capability in FAST_FLOAT64


def cases(options: MatmulOptions, accel: Accel) -> list[Case]:
    """The cases to time. Without `--dtype`: what the device really has; what it emulates runs only when asked for."""
    sizes = DEFAULT_SIZES["cpu" if accel.is_cpu else "accelerator"]
    shapes = options.wanted or tuple((size, size, size) for size in sizes)
    supports = {dtype: support(dtype, accel) for dtype in options.dtypes or DTYPES}
    wanted = [dtype for dtype, has in supports.items() if options.dtypes or _by_default(dtype, has, accel)]
    return [_case(dtype, shape, supports[dtype], options, accel) for dtype in wanted for shape in shapes]


def _case(dtype: Dtype, shape: Shape, has: Support, options: MatmulOptions, accel: Accel) -> Case:
    problem = why_not(dtype, shape, accel)
    if has.kind != "none" and problem:
        has = Support("none", f"{'x'.join(map(str, shape))}: {problem}")
    one = Case(dtype, shape, has)
    if not options.cold:
        return one
    known = host.last_level_cache_bytes() if accel.is_cpu else accel.l2_cache_bytes
    wanted = max(2, COLD_FACTOR * (known or ASSUMED_CACHE_BYTES) // one.set_bytes + 1)
    told: dict[str, Any] = {"cache_bytes": known}
    if known is None:
        told["cache_assumed_bytes"] = ASSUMED_CACHE_BYTES
    if wanted > MOST_SETS:
        told["not_cold_because"] = f"{wanted} sets would be needed, and no more than {MOST_SETS} are made"
    return replace(one, sets=min(wanted, MOST_SETS), cold=wanted <= MOST_SETS, rotation=told)


def fitting(found: Sequence[Case], options: MatmulOptions, room: int) -> Iterator[Case]:
    """The cases that fit into `room` bytes. One that the user asked for and that does not is a UsageError."""
    for case in found:
        if case.bytes <= room:
            yield case
        elif options.wanted:
            raise UsageError(
                f"{case.label} does not fit",
                f"its matrices, a copy of the result and its check take {units.capacity(case.bytes)}, "
                f"and {units.capacity(room)} are free",
                "use a smaller --size",
            )
