"""What `find-batch-size` can be asked for. Pure: read before torch is."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import units
from gpucheck.options import option

MODES = ("train", "infer")
# A long run fragments its memory, meets longer samples and logs more than a trial does: a tenth is left for that.
HEADROOM = 0.10


@dataclass(frozen=True, slots=True)
class FindBatchSizeOptions:
    """What the user asked for, as text where only the search knows what it means.

    `tolerance` None is the default of 2 % of the answer. `import_path` are folders where the target's module may be
    besides, for children that are not started as this process was.
    """

    target: str | None = option(
        "package.module:factory, path/to/file.py:factory, mlp, convnet or transformer (the default).",
        metavar="TARGET",
        positional=True,
    )
    mode: str = option("train or infer.", "train", metavar="MODE", shown="train", choices=MODES)
    optimizer: str = option(
        "sgd, adam, adamw or another of torch.optim; a target's own wins.", "adamw", metavar="NAME", shown="adamw"
    )
    dtype: str | None = option("float32, float16, bfloat16 or float64.", metavar="DTYPE")
    amp: str | None = option("Mixed precision with autocast: bfloat16 or float16 (scaled).", metavar="DTYPE")
    grad_checkpointing: bool = option("Switch on the model's own checkpointing of activations.", False)
    compiled: bool = option("Run the model through torch.compile, anew for each size.", False, name="--compile")
    inputs: tuple[str, ...] = option(
        "NAME:SHAPE:DTYPE[:LOW..HIGH], the shape without the batch, like image:3x224x224:float32 or "
        "ids:1024:int64:0..50256. Repeatable.",
        name="--input",
        metavar="SPEC",
        repeat=True,
    )
    axis: str | None = option(
        "Search along a dimension that a shape names instead, like seq with --input ids:seq:int64:0..50256.",
        metavar="NAME[:LOW..HIGH]",
    )
    batch_size: int | None = option("The fixed batch beside --axis; default 1.", metavar="N", parse=units.parse_whole)
    max_batch_size: int = option("Search no further.", 65536, metavar="N", parse=units.parse_whole, shown="65536")
    tolerance: float | None = option(
        "How far below the maximum is enough; default 2%.", metavar="PERCENT", parse=units.parse_percent
    )
    exact: bool = option("The maximum itself, with the failure of the next size for proof.", False)
    avoid_oom: bool = option("Try only what is predicted below 85 % of the budget.", False)
    multiple_of: int = option("Try only multiples of N.", 1, metavar="N", parse=units.parse_whole, shown="1")
    start: int | None = option(
        "The first size to try; default a quarter of what is predicted, else the least.",
        metavar="N",
        parse=units.parse_whole,
    )
    memory_limit: str | None = option(
        "24GiB, 80% or leave:2GiB. Default: what is free; on a CPU the smaller of 2 GiB and half of it.",
        metavar="LIMIT",
    )
    estimate: bool = option("For a device that is not here, of --memory-limit: a figure, nothing is run.", False)
    resume: str | None = option(
        "Keep a log of the trials in FILE, and go on from those that it holds already.", metavar="FILE"
    )
    headroom: float = option(
        "Of the budget, left free by the recommended size.",
        HEADROOM,
        metavar="PERCENT",
        parse=units.parse_percent,
        shown="10%",
    )
    effective_batch: int | None = option(
        "Say how to reach N samples by accumulating gradients.", metavar="N", parse=units.parse_whole
    )
    time_budget_s: float | None = option(
        "For the whole command, default 5m; on a CPU from the first trial on, default 60s.",
        name="--time-budget",
        metavar="TIME",
        parse=units.parse_duration,
    )
    quick: bool = option("The answer alone: no size to recommend, nor what else follows it.", False)
    trial_timeout_s: float | None = option(
        "For one trial; default from the trials before.",
        name="--trial-timeout",
        metavar="TIME",
        parse=units.parse_duration,
    )
    device: str = "auto"
    import_path: tuple[str, ...] = ()
