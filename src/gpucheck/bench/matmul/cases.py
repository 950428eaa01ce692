"""What `bench matmul` multiplies: the options, what a device has, and the products that these mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from gpucheck import units
from gpucheck.bench.matmul.search_range import LARGEST_SIDE, Axis, Shape, parse_axes
from gpucheck.errors import UsageError
from gpucheck.machine import host
from gpucheck.machine.accel import Accel

Dtype = Literal["float32", "tf32", "float16", "bfloat16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

# 8192 fills the largest GPU of today (an H200 works on it for 1.4 ms in bfloat16), 4096 shows what smaller work gets;
# the largest is not always the fastest (an L4 is faster at 2048 than at 10240). A CPU core needs 0.3 s for 2048.
DEFAULT_SIZES = {"accelerator": (4096, 8192), "cpu": (1024, 2048)}


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; empty means the documented default."""

    dtypes: tuple[Dtype, ...] = ()
    shapes: tuple[Shape, ...] = ()
    time_budget_s: float | None = None
    device: str = "auto"
    search: bool = False
    # Of M, N and K; None is the default of the device.
    axes: tuple[Axis | None, Axis | None, Axis | None] = (None, None, None)
    sustain_s: float | None = None


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a device has a dtype: really, emulated (slow), or not at all; `unknown` where that cannot be told."""

    kind: Literal["native", "emulated", "none", "unknown"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One product to time."""

    dtype: Dtype
    shape: Shape
    support: Support

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of its tensors: TF32 is a way to multiply float32."""
        found: torch.dtype = getattr(torch, "float32" if self.dtype == "tf32" else self.dtype)
        return found

    @property
    def bytes(self) -> int:
        """What its three matrices take."""
        m, n, k = self.shape
        return (m * k + k * n + m * n) * int(self.torch_dtype.itemsize)

    @property
    def label(self) -> str:
        """The case in words."""
        return f"{self.dtype} {'x'.join(map(str, self.shape))}"


def parse(
    *,
    dtypes: Sequence[str] = (),
    sizes: Sequence[str] = (),
    shapes: Sequence[str] = (),
    time_budget_s: float | None = None,
    device: str = "auto",
    search: bool = False,
    ranges: Mapping[str, str] | None = None,
    sustain_s: float | None = None,
) -> Options:
    """Options from what was typed; `ranges` by the names of their options. Raises UsageError."""
    axes = parse_axes(ranges or {})
    if search and (sizes or shapes):
        raise UsageError("--search looks for the shape itself", "", "give --range instead of --size and --shape")
    if any(axes) and not search:
        raise UsageError("a range is something to search in", "", "give --search too")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UsageError(f"--dtype {dtype!r} is not known", "", f"give {', '.join(DTYPES)}")
    sides = [_side(text, "--size", text) for text in sizes]
    wanted = [(side, side, side) for side in sides] + [_shape(text) for text in shapes]
    return Options(
        dtypes=tuple(dtype for dtype in DTYPES if dtype in dtypes),
        shapes=tuple(dict.fromkeys(wanted)),
        time_budget_s=time_budget_s,
        device=device,
        search=search,
        axes=axes,
        sustain_s=sustain_s,
    )


def _shape(text: str) -> Shape:
    parts = text.lower().split("x")
    if len(parts) != 3:
        raise UsageError(f"--shape {text!r} is not understood", "", "write it MxNxK, like 4096x4096x1024")
    m, n, k = (_side(part, "--shape", text) for part in parts)
    return m, n, k


def _side(part: str, option: str, whole: str) -> int:
    if not re.fullmatch(r"\d+", part, re.ASCII) or not 1 <= int(part) <= LARGEST_SIDE:
        raise UsageError(
            f"{option} {whole!r} is no size of a matrix", f"a side is a whole number from 1 to {LARGEST_SIDE}"
        )
    return int(part)


def support(dtype: Dtype, accel: Accel) -> Support:
    """Whether this device multiplies this dtype in hardware."""
    if dtype == "float32":
        return Support("native")
    if accel.is_cpu:
        return _support_on_cpu(dtype)
    if accel.kind != "cuda":
        return Support("none", f"{accel.kind} has no TF32") if dtype == "tf32" else Support("unknown")
    if torch.version.hip:
        return Support("unknown", "not told apart on ROCm")
    capability = accel.compute_capability or (0, 0)
    # CUDA C++ Programming Guide, "Compute Capabilities": half arithmetic from 5.3, bfloat16 and TF32 from 8.0.
    if dtype == "float16":
        return Support("native") if capability >= (5, 3) else Support("emulated", "before compute capability 5.3")
    if capability >= (8, 0):
        return Support("native")
    return Support("none" if dtype == "tf32" else "emulated", "before compute capability 8.0")


def _support_on_cpu(dtype: Dtype) -> Support:
    if dtype == "tf32":
        return Support("none", "a CPU has no TF32")
    flags = host.cpu_flags()
    if not flags:
        return Support("unknown", "this system does not list the CPU's features")
    # Linux, arch/x86/include/asm/cpufeatures.h and arch/arm64: names as /proc/cpuinfo prints them.
    native = {"bfloat16": {"amx_bf16", "avx512_bf16", "bf16"}, "float16": {"amx_fp16", "avx512_fp16", "asimdhp"}}
    if native[dtype] & flags:
        return Support("native")
    return Support("emulated", f"this CPU has none of {', '.join(sorted(native[dtype]))}")


def cases(options: Options, accel: Accel) -> list[Case]:
    """The cases to time. Without `--dtype`: what the device really has; what it emulates runs only when asked for."""
    sizes = DEFAULT_SIZES["cpu" if accel.is_cpu else "accelerator"]
    shapes = options.shapes or tuple((size, size, size) for size in sizes)
    supports = {dtype: support(dtype, accel) for dtype in options.dtypes or DTYPES}
    wanted = [dtype for dtype, has in supports.items() if options.dtypes or has.kind == "native"]
    return [Case(dtype, shape, supports[dtype]) for dtype in wanted for shape in shapes]


def fitting(found: Sequence[Case], options: Options, room: int) -> Iterator[Case]:
    """The cases that fit into `room` bytes. One that the user asked for and that does not is a UsageError."""
    for case in found:
        if case.bytes <= room:
            yield case
        elif options.shapes:
            raise UsageError(
                f"{case.label} does not fit",
                f"its matrices take {units.capacity(case.bytes)}, and {units.capacity(room)} are free",
                "give a smaller --size",
            )
