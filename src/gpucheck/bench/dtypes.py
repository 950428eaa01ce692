"""The dtypes of products, and their support by a device. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:  # a help page needs no device
    from gpucheck.machine.accel import Accel

# float8_e4m3fn_fast is a way to multiply float8 (with fast accumulation). tf32 is a way to multiply float32.
Dtype = Literal[
    "float64",
    "float32",
    "tf32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fn_fast",
    "float8_e4m3fnuz",
    "int8",
]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True, slots=True)
class Support:
    """The support of a dtype by a device: native (in hardware), emulated (slow), none or unknown."""

    kind: Literal["native", "emulated", "none", "unknown"]
    reason: str = ""


def support(dtype: Dtype, accel: Accel) -> Support:
    import torch

    if dtype == "float32" or (accel.is_cpu and dtype == "float64"):
        return Support("native")
    is_cuda = accel.kind == "cuda" and not torch.version.hip
    if dtype == "tf32" and (accel.is_cpu or accel.kind != "cuda"):
        return Support("none", "a CPU has no TF32" if accel.is_cpu else f"{accel.kind} has no TF32")
    if dtype == "float8_e4m3fn_fast" and not is_cuda:
        return Support("none", "fast accumulation is a mode of cuBLAS")
    if accel.is_cpu:
        if dtype.startswith("float8"):
            return Support("emulated", "on a CPU float8 is converted first")
        from gpucheck.machine import host

        if not (flags := host.cpu_flags()):
            return Support("unknown", "this system does not list the CPU's features")
        missing = f"this CPU has none of {', '.join(sorted(_CPU[dtype]))}"
        return Support("native") if _CPU[dtype] & flags else Support("emulated", missing)
    if not is_cuda:
        # Dtypes of unknown support are not measured by default. The library may refuse a dtype that the user selects.
        return Support("unknown")
    if dtype == "float8_e4m3fnuz":
        return Support("none", "this device has float8_e4m3fn")
    least, otherwise = _CUDA[dtype]
    if (accel.compute_capability or (0, 0)) >= least:
        return Support("native")
    return Support(otherwise, f"before compute capability {least[0]}.{least[1]}")


# float16 needs compute capability 5.3, int8 7.5 (7.2 on Tegra), bfloat16 and TF32 8.0, float8 8.9. Every GPU has
# float64, which is slow on most GPUs. Source: CUDA C++ Programming Guide, "Compute Capabilities" and tensor cores.
_CUDA: dict[str, tuple[tuple[int, int], Literal["emulated", "none"]]] = {
    "float64": ((0, 0), "none"),
    "tf32": ((8, 0), "none"),
    "float16": ((5, 3), "emulated"),
    "bfloat16": ((8, 0), "emulated"),
    "float8_e4m3fn": ((8, 9), "none"),
    "float8_e4m3fn_fast": ((8, 9), "none"),
    "int8": ((7, 5), "none"),
}
# The names of features in /proc/cpuinfo. Source: Linux, arch/x86/include/asm/cpufeatures.h and arch/arm64.
_CPU: dict[str, frozenset[str]] = {
    "bfloat16": frozenset({"amx_bf16", "avx512_bf16", "bf16"}),
    "float16": frozenset({"amx_fp16", "avx512_fp16", "asimdhp"}),
    "int8": frozenset({"amx_int8", "avx512_vnni", "avx_vnni", "asimddp", "i8mm"}),
}
