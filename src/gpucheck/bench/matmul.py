"""`bench matmul`: how fast matrix products run, in which precision they really run, and whether they are right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from gpucheck import units
from gpucheck.bench import busy, share
from gpucheck.errors import CannotLook, Terminated, UsageError
from gpucheck.machine import choose, host, inventory
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.peaks import Part, Unknown
from gpucheck.report.events import Emit, Judged, Measured, Notice, Progress, Started
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.work import precision
from gpucheck.work.reference import Check, check_product

Dtype = Literal["float32", "tf32", "float16", "bfloat16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
Shape = tuple[int, int, int]

# 8192 fills the largest GPU of today (an H200 works on it for 1.4 ms in bfloat16), 4096 shows what smaller work gets;
# the largest is not always the fastest (an L4 is faster at 2048 than at 10240). A CPU core needs 0.3 s for 2048.
DEFAULT_SIZES = {"accelerator": (4096, 8192), "cpu": (1024, 2048)}
DEFAULT_BUDGET_S = 30.0
# Beyond this a row only grows more certain about this one process.
LONGEST_ROW_S = 3.0
# The clock settles within about a second under load; a cold chip scores too high.
WARM_UP_SHARE = 0.25
# Of the memory that is free: the matrices leave room for the library's workspace and for the check.
MEMORY_SHARE = 0.8
# No dimension of a tensor that fits any machine is larger.
LARGEST_SIDE = 2**24


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; empty means the documented default."""

    dtypes: tuple[Dtype, ...] = ()
    shapes: tuple[Shape, ...] = ()
    time_budget_s: float | None = None
    device: str = "auto"


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


@dataclass(frozen=True, slots=True)
class Result:
    """A measured case with what was observed of its precision and its result."""

    measurement: Measurement
    check: Check


# -- options ---------------------------------------------------------------------------------------------------------


def parse(
    *,
    dtypes: Sequence[str] = (),
    sizes: Sequence[str] = (),
    shapes: Sequence[str] = (),
    time_budget_s: float | None = None,
    device: str = "auto",
) -> Options:
    """Options from what was typed. Raises UsageError."""
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


# -- what the device has ---------------------------------------------------------------------------------------------


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


# -- measuring -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Buffers:
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor


def _buffers(case: Case, accel: Accel) -> _Buffers:
    m, n, k = case.shape

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=case.torch_dtype, device=accel.device)

    return _Buffers(empty(m, k), empty(k, n), empty(m, n))


def measure(case: Case, accel: Accel, budget_s: float, watch: Watch) -> Result:
    """Time one case: observe its precision, warm up, time, check the last result. Raises what torch raises."""
    wanted: precision.Precision = "tf32" if case.dtype == "tf32" else "ieee"
    accel.reset_peak()
    buffers = _buffers(case, accel)
    a, b, out = buffers.a, buffers.b, buffers.out
    nothing = a[:0, :0], b[:0, :0], out[:0, :0]
    with precision.precision(wanted):
        settings = precision.state()
        observed = precision.observed(a, b, out)
        # Random data: zeros and ones draw less power and run faster.
        generator = torch.Generator(accel.device).manual_seed(0)
        a.normal_(generator=generator)
        b.normal_(generator=generator)
        work = timing.Work(
            lambda: torch.mm(a, b, out=out), empty=lambda: torch.mm(nothing[0], nothing[1], out=nothing[2])
        )
        limits = timing.Limits(budget_s=budget_s * (1 - WARM_UP_SHARE), warmup_s=budget_s * WARM_UP_SHARE)
        clock: timing.Clock = "device events" if accel.has_events else "host"
        timed, beside = row.watched(
            watch, torch.get_num_threads(), lambda: timing.measure(accel, work, clock=clock, limits=limits)
        )
    memory = accel.memory()
    check = check_product(a, b, out, observed if case.dtype == "tf32" else None)
    m, n, k = case.shape
    measured = row.measurement(
        "matmul",
        accel.ref,
        timed,
        beside,
        case={"dtype": case.dtype, "m": m, "n": n, "k": k, "support": case.support.kind},
        # A product and a sum for each of the m·n·k terms, as the field counts them.
        work=("flop", 2.0 * m * n * k, "FLOP/s"),
        memory=memory,
        cache="warm",
        precision_requested=case.dtype,
        precision_observed=observed,
        details={
            "data": "normal, mean 0, variance 1",
            "output": "preallocated",
            "precision_state": settings,
            "support": case.support.reason or case.support.kind,
            "checked_rows": check.rows,
            "worst_error_of_bound": check.worst,
            "not_finite": check.not_finite,
            "smallest_detectable_error": check.smallest_detectable,
        },
        flags=("emulated",) if case.support.kind == "emulated" else (),
    )
    return Result(measured, check)


# -- judging ---------------------------------------------------------------------------------------------------------


def judge(measurements: Sequence[Measurement], part: Part | Unknown | None = None) -> list[Finding]:
    """What one device's measurements say: wrong precision or a wrong result fails, whatever the speed.

    `part` is what the device can do at most; None for a CPU.
    """
    if not measurements:
        return [Finding("matmul.speed", "skip", "nothing was timed", "this device has none of the dtypes asked for")]
    return [
        _precision(measurements),
        _result(measurements),
        *_fastest(measurements),
        *share.of_products(measurements, part),
        *busy.judge("matmul.cpu_busy", measurements),
    ]


def _label(measurement: Measurement) -> str:
    case = measurement.case
    return f"{case['dtype']} {case['m']}x{case['n']}x{case['k']}"


def _precision(measurements: Sequence[Measurement]) -> Finding:
    seen = {_label(one): one.method.precision_observed for one in measurements}
    wrong = [one for one in measurements if one.method.precision_observed != one.method.precision_requested]
    if not wrong:
        return Finding("matmul.precision", "pass", "every product has the precision asked for", evidence=seen)
    told = "; ".join(f"{_label(one)} was computed in {one.method.precision_observed}" for one in wrong)
    return Finding(
        "matmul.precision",
        "fail",
        "a product does not have the precision asked for",
        told,
        seen,
        fix="look for NVIDIA_TF32_OVERRIDE, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE or ONEDNN_DEFAULT_FPMATH_MODE",
    )


def _result(measurements: Sequence[Measurement]) -> Finding:
    worst = {_label(one): one.method.details["worst_error_of_bound"] for one in measurements}
    wrong = [
        one
        for one in measurements
        if one.method.details["worst_error_of_bound"] > 1 or one.method.details["not_finite"]
        # A product in another precision than asked for is that finding's, not a wrong result.
        if one.method.precision_observed == one.method.precision_requested
    ]
    if not wrong:
        return Finding("matmul.result", "pass", "results agree with float64 on the sampled rows", evidence=worst)
    told = "; ".join(
        f"{_label(one)}: error {units.significant(one.method.details['worst_error_of_bound'])} times its bound, "
        f"{one.method.details['not_finite']} elements not finite"
        for one in wrong
    )
    return Finding(
        "matmul.result",
        "fail",
        "a result is wrong",
        told,
        worst,
        fix="run it again, then `gpucheck smoke`: a device that computes wrongly twice is broken",
    )


def _fastest(measurements: Sequence[Measurement]) -> list[Finding]:
    """The best rate of each dtype, and what a lower precision would gain."""
    best: dict[str, float] = {}
    for one in measurements:
        if one.rate is not None:
            dtype = str(one.case["dtype"])
            best[dtype] = max(best.get(dtype, 0.0), one.rate.median)
    if not best:
        return []
    told = ", ".join(f"{dtype} {units.flop_rate(rate)}" for dtype, rate in best.items())
    found = [Finding("matmul.speed", "info", "fastest", told, {"flop_per_s": best})]
    plain, tf32 = best.get("float32"), best.get("tf32")
    # Below this the gain is within what shapes and clocks change.
    if plain and tf32 and tf32 > 1.2 * plain:
        found.append(
            Finding(
                "matmul.tf32_gain",
                "info",
                f"TF32 is {units.significant(tf32 / plain, 2)}× faster than float32 here",
                "it keeps 10 bits of the mantissa",
                {"gain": tf32 / plain},
                fix='torch.set_float32_matmul_precision("high")',
            )
        )
    return found


# -- the command -----------------------------------------------------------------------------------------------------


def command(options: Options, emit: Emit) -> None:
    """Time matrix products on every device asked for. Raises CannotLook and UsageError."""
    facts = inventory.read()
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    if chosen.notice:
        emit(Notice(chosen.notice))
    for device_id in chosen.ids:
        accel = choose.open_named(device_id, facts)
        part = share.part_of(accel, facts)
        measured: list[Measurement] = []
        try:
            for measurement in _on_device(options, accel, emit, len(chosen.ids)):
                measured.append(measurement)
        except (KeyboardInterrupt, Terminated):
            # The report so far is judged so far.
            for finding in judge(measured, part) if measured else ():
                emit(Judged(finding))
            raise
        for finding in judge(measured, part):
            emit(Judged(finding))


def _on_device(options: Options, accel: Accel, emit: Emit, devices: int) -> Iterator[Measurement]:
    wanted = cases(options, accel)
    for case in wanted:
        if case.support.kind == "none":
            emit(Notice(f"{case.dtype} is left out: {case.support.reason}", "warning"))
    room = int((info[0] if (info := accel.memory_info()) else host.memory().usable) * MEMORY_SHARE)
    todo = list(fitting([case for case in wanted if case.support.kind != "none"], options, room))
    budget_s = (options.time_budget_s or DEFAULT_BUDGET_S) / devices
    with accel.as_current(), Watch(accel.uuid) as watch:
        for done, case in enumerate(todo):
            emit(Progress(f"matmul {case.label} on {accel.id}", done, len(todo)))
            try:
                result = measure(case, accel, min(budget_s / len(todo), LONGEST_ROW_S), watch)
            except (RuntimeError, MemoryError) as error:
                if "not implemented for" in str(error):
                    reason = str(error).strip().splitlines()[0]
                    emit(Judged(Finding("matmul.dtype", "skip", f"{accel.id} has no product in {case.dtype}", reason)))
                    continue
                if not accel.is_out_of_memory(error):
                    raise
                raise CannotLook(
                    f"memory ran out at {case.label}",
                    f"its matrices take {units.capacity(case.bytes)}, and something else took what was free",
                    "give a smaller --size, or end what else uses this memory",
                    finding="matmul.memory",
                ) from error
            accel.empty_cache()
            emit(Measured(result.measurement))
            yield result.measurement
