"""The options of `find-batch-size`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import options, units
from gpucheck.options import TIME, option
from gpucheck.work.spec import FLOATING

MODES = ("train", "infer")
AMP = ("bfloat16", "float16")
# A long training run needs more memory than a trial: memory fragments, and longer samples follow.
HEADROOM = 0.10
# Larger batches are rarely used, and searching them takes long.
DEFAULT_CAP = 65536

# Headings of the help page.
MODEL, SEARCH, ANSWER = "Model", "Search", "Answer"


@dataclass(frozen=True, slots=True)
class FindBatchSizeOptions:
    """The user's options. Child processes append the folders in `import_path` to `sys.path` to import the target."""

    target: str | None = option(
        "package.module:factory, path/to/file.py:factory, mlp, convnet or transformer.",
        shown="transformer",
        metavar="TARGET",
        positional=True,
    )
    mode: str = option("train or infer.", "train", metavar="MODE", shown="train", choices=MODES, group=MODEL)
    optimizer: str = option(
        "sgd, adam, adamw or another of torch.optim; the target's own optimizer takes precedence.",
        "adamw",
        metavar="NAME",
        shown="adamw",
        group=MODEL,
    )
    dtype: str | None = option(
        "Data type of the model: float32, float16, bfloat16 or float64.", metavar="DTYPE", choices=FLOATING, group=MODEL
    )
    amp: str | None = option(
        "Mixed precision with autocast: bfloat16 or float16 (scaled).", metavar="DTYPE", choices=AMP, group=MODEL
    )
    inputs: tuple[str, ...] = option(
        "Model input as NAME:SHAPE:DTYPE[:LOW..HIGH], without the batch dimension, like image:3x224x224:float32 or "
        "ids:1024:int64:0..50256. Repeatable.",
        name="--input",
        metavar="SPEC",
        repeat=True,
        group=MODEL,
    )
    axis: str | None = option(
        "Search a dimension named in --input instead of the batch size, like seq in ids:seq:int64:0..50256.",
        metavar="NAME[:LOW..HIGH]",
        group=SEARCH,
    )
    batch_size: int | None = option(
        "Batch size while --axis is searched.", metavar="N", parse=units.parse_whole, shown="1", group=SEARCH
    )
    max_batch_size: int | None = option(
        "Largest size to try.", metavar="N", parse=units.parse_whole, shown=str(DEFAULT_CAP), group=SEARCH
    )
    tolerance: float | None = option(
        "Accept an answer this far below the maximum.",
        metavar="PERCENT",
        parse=units.Percent(0.5, above=True),  # Doubling alone already finds a size within 50 % of the maximum.
        shown="2%",
        group=SEARCH,
    )
    exact: bool = option("Find the exact maximum; verify that the next size fails.", False, group=SEARCH)
    avoid_oom: bool = option("Try only sizes predicted to use less than 85% of the budget.", False, group=SEARCH)
    multiple_of: int = option(
        "Try only multiples of N.", 1, metavar="N", parse=units.parse_whole, shown="1", group=SEARCH
    )
    start: int | None = option("First size to try.", metavar="N", parse=units.parse_whole, shown="8", group=SEARCH)
    memory_limit: str | None = option(
        "Memory budget, like 24GiB, 80% or leave:2GiB.",
        metavar="LIMIT",
        range="1B to 1EiB, or above 0%, up to 100%",
        shown="free memory, on a CPU half of it, at most 2GiB",
        group=SEARCH,
    )
    estimate: bool = option(
        "Estimate the batch size for a GPU you don't have, with --memory-limit; run nothing.", False, group=SEARCH
    )
    headroom: float = option(
        "Share of the budget that the recommended size leaves free.",
        HEADROOM,
        metavar="PERCENT",
        parse=units.Percent(1.0, below=True),
        shown="10%",
        group=ANSWER,
    )
    effective_batch: int | None = option(
        "Show how to reach N samples with gradient accumulation.", metavar="N", parse=units.parse_whole, group=ANSWER
    )
    time_budget_s: float | None = options.time_budget("5m, on a CPU 60s")
    quick: bool = option("Find the maximum only; recommend no size.", False, group=ANSWER)
    trial_timeout_s: float | None = option(
        "Time limit for one trial.",
        name="--trial-timeout",
        metavar="TIME",
        parse=units.parse_duration,
        shown="from earlier trials",
        group=TIME,
    )
    device: str = "auto"
    import_path: tuple[str, ...] = ()
