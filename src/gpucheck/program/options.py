"""Options of `model` and `run`. They are parsed before torch is loaded."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpucheck import peaks, units
from gpucheck.errors import UsageError
from gpucheck.options import option
from gpucheck.work.spec import FLOATING, parse_inputs, parse_target

AMP = ("bfloat16", "float16")
# Batch normalization refuses to train on one sample.
BATCH_SIZE = 2
DEPTH = 3


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The user's options. Some stay text, because only the child that loads the target can interpret them."""

    target: str = option(
        "package.module:factory, path/to/file.py:factory, mlp, convnet or transformer.",
        metavar="TARGET",
        positional=True,
        required=True,
    )
    inputs: tuple[str, ...] = option(
        "NAME:SHAPE:DTYPE[:LOW..HIGH], the shape without the batch, like image:3x224x224:float32 or "
        "ids:1024:int64:0..50256. Repeatable. Without it, only the weights are checked.",
        name="--input",
        metavar="SPEC",
        repeat=True,
    )
    train: bool = option("Run a whole training step instead of a forward pass.", False)
    optimizer: str = option(
        "sgd, adam, adamw or another of torch.optim; the target's own optimizer takes precedence.",
        "adamw",
        metavar="NAME",
        shown="adamw",
    )
    dtype: str | None = option("float32, float16, bfloat16 or float64.", metavar="DTYPE", choices=FLOATING)
    amp: str | None = option("Mixed precision with autocast: bfloat16 or float16.", metavar="DTYPE", choices=AMP)
    batch_size: int = option(
        "Samples in a batch.", BATCH_SIZE, metavar="N", parse=units.Integer(), shown=str(BATCH_SIZE)
    )
    depth: int = option("Levels of the tree to show.", DEPTH, metavar="N", parse=units.Integer(), shown=str(DEPTH))

    def check(self) -> None:
        """Raise UsageError for a mistake that is visible without torch, and TargetError for a missing file."""
        parse_target(self.target)
        for spec in parse_inputs(self.inputs):
            if (name := next((size for size in spec.shape if isinstance(size, str)), None)) is not None:
                raise UsageError(f"--input {spec.name} names a dimension {name!r}", "", "give its length")
        if not self.optimizer.removeprefix("torch.optim.").isidentifier():
            fix = "use sgd, adam, adamw or another of torch.optim"
            raise UsageError(f"--optimizer {self.optimizer!r} is not a name", "", fix)
        if self.amp is not None and self.dtype not in (None, "float32"):
            raise UsageError(f"--amp {self.amp} and --dtype {self.dtype} exclude each other", "", "give one of them")


# The first step creates the state that training keeps, and the second uses it.
STEPS = 2
# The memory in GB of GPUs whose name does not contain it (data sheets of NVIDIA and AMD). gpucheck uses the number as
# GiB, up to 6 % more than torch can use. A program that needs even more does not fit.
_GIB = {
    **dict.fromkeys(("Tesla T4", "NVIDIA GeForce RTX 4080"), 16),
    **dict.fromkeys(("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090"), 24),
    **dict.fromkeys(("NVIDIA A10", "NVIDIA A10G", "NVIDIA L4"), 24),
    "NVIDIA GeForce RTX 5090": 32,
    **dict.fromkeys(("NVIDIA L40", "NVIDIA L40S", "NVIDIA RTX A6000", "NVIDIA RTX 6000 Ada Generation"), 48),
    **dict.fromkeys(("NVIDIA H100 PCIe", "NVIDIA H800"), 80),
    "NVIDIA H100 NVL": 94,
    **dict.fromkeys(("NVIDIA H20", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"), 96),
    "NVIDIA GH200 480GB": 96,  # the name's 480 GB belong to the CPU
    **dict.fromkeys(("NVIDIA H200", "NVIDIA H200 NVL"), 141),
    "NVIDIA B200": 180,
    "AMD Instinct MI300X": 192,
    "AMD Instinct MI325X": 256,
    **dict.fromkeys(("NVIDIA B300 SXM6 AC", "NVIDIA GB300", "AMD Instinct MI355X"), 288),
}
_BRANDS = {"nvidia", "geforce", "tesla", "amd", "instinct"}


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """The model and the number of the simulated GPUs. If `total_bytes` is None, their memory has no limit."""

    name: str = "simulated GPU"
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    total_bytes: int | None = None
    count: int = 1

    @property
    def readable_bytes(self) -> int:
        """Return the memory size that torch reports to the program; an H100's if the user gave no size."""
        return self.total_bytes or 80 * units.GIB


def parse_device(text: str, option: str) -> SimulatedGpu:
    """Return the device of `cuda:80GiB`, `cuda:NVIDIA H200` or `cuda:80GiBx2`. Raises UsageError."""
    if with_count := re.fullmatch(r"(.+?)[×x*]([1-9]\d?)", text):
        return replace(parse_device(with_count[1], option), count=int(with_count[2]))
    device_type, _, label = text.partition(":")
    label = label.strip("'\"")  # a name with a space may be quoted twice
    if device_type != "cuda" or (not label and ":" in text):
        raise units.refused(option, "cuda, cuda:SIZE or cuda:NAME", text, "as in --dry cuda:80GiB")
    if label in ("", "0"):
        return SimulatedGpu()
    if label.isdigit() and len(label) < 4:  # four digits are a name, such as 4090
        raise units.refused(option, "one device, which is cuda:0", text, f"for its memory write cuda:{label}GiB")
    if label[0].isdigit() and not label.isdigit():
        return SimulatedGpu(total_bytes=units.Size(smallest=1)(label, option))
    return _by_name(label, text, option)


def _by_name(label: str, text: str, option: str) -> SimulatedGpu:
    """Return the listed GPU with this name, with or without its brand; else the only GPU whose name contains it."""
    gpus = {gpu.name: gpu for gpu in peaks.parts() if _gib(gpu.name)}
    words = set(label.lower().split())
    matches = [name for name in gpus if set(name.lower().split()) - _BRANDS == words - _BRANDS]
    matches = matches or [name for name in gpus if words <= set(re.split(r"[ -]", name.lower()))]
    matches = matches or [name for name in gpus if label in name]
    if len(matches) != 1:
        brand = re.compile(rf"\b({'|'.join(_BRANDS)}) ", re.IGNORECASE)
        names = ", ".join(brand.sub("", name) for name in matches or gpus)
        raise units.refused(option, "a size or the name of one GPU", text, f"give a size, or one of {names}")
    gpu = gpus[matches[0]]
    return SimulatedGpu(gpu.name, gpu.capability, gpu.multiprocessors, _gib(gpu.name) * units.GIB)


def _gib(name: str) -> int:
    match = re.search(r"(\d+) ?GB", name)
    return _GIB.get(name) or (int(match[1]) if match else 0)


def refuse_misplaced(program: Sequence[str], before: Sequence[str]) -> None:
    """Raise UsageError for `--dry DEVICE` after the program, which would get the option and train for real. If the
    program's source has the word `dry`, the option is accepted. `before` has gpucheck's options before the program."""
    script, *arguments = program
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        value = value if equals else "".join(arguments[index + 1 : index + 2])
        if name != "--dry" or not value.startswith("cuda"):
            continue
        with contextlib.suppress(OSError):  # the program may be a module's name
            if re.search(r"\bdry\b", Path(script).read_text(encoding="utf-8", errors="replace")):
                return
        others = [*arguments[:index], *arguments[index + (1 if equals else 2) :]]
        dry_run = shlex.join(["gpucheck", "run", "--dry", value, *before, script, *others])
        as_given = shlex.join(["gpucheck", "run", *before, "--", *program])
        why = f"options after {script} go to the program, which has no --dry"
        fix = f"{dry_run}, or if the program takes it: {as_given}"
        raise UsageError(f"--dry {value} comes after {script}", why, fix)


@dataclass(frozen=True, slots=True)
class RunOptions:
    program: tuple[str, ...] = option(
        "The program and its arguments, as for python.",
        name="SCRIPT",
        metavar="SCRIPT [ARGS]...",
        positional=True,
        repeat=True,
        commas=False,
        required=True,
        verbatim=True,
    )
    module: bool = option("SCRIPT is a module, as for python -m.", False, short="-m")
    trace: int | None = option(
        "Trace N steps in detail: which lines create and keep memory. Slows these steps.",
        metavar="N",
        parse=units.Integer(largest=1000),
    )

    hang_after_s: float | None = option(
        "Under torchrun: call a collective a hang after TIME.",
        shown="half the smallest timeout, at most 5m",
        name="--hang-after",
        metavar="TIME",
        parse=units.parse_duration,
    )
    end_on_hang: bool = option("Under torchrun: report where a job hangs, then end it.", False)

    dry: SimulatedGpu | None = option(
        "Run without a GPU, on a simulated one: cuda, cuda:80GiB with this memory, or cuda:H200 by name. cuda:80GiBx2 "
        "simulates two. Memory is counted on cuda:0.",
        metavar="cuda[:SIZE|:NAME]",
        parse=parse_device,
    )
    steps: int | None = option(
        "With --dry: end each loop over a DataLoader after N rounds, and the program after 3N optimizer steps.",
        shown=str(STEPS),
        metavar="N",
        parse=units.Integer(largest=1_000_000),
    )
    no_values: bool = option("With --dry: device tensors have no data, for a model larger than the host's RAM.", False)

    def check(self) -> None:
        for name, is_given in {"--steps": self.steps is not None, "--no-values": self.no_values}.items():
            if is_given and self.dry is None:
                raise UsageError(f"{name} needs --dry", "", f"gpucheck run --dry cuda {name} …")
        if self.dry is not None and self.trace is not None:
            raise UsageError("--trace and --dry exclude each other", "", "a dry run counts memory by line already")
