"""Options of `model`. Pure: read before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import units
from gpucheck.errors import UsageError
from gpucheck.options import option
from gpucheck.work.spec import FLOATING, parse_inputs, parse_target

AMP = ("bfloat16", "float16")
# Two, because batch normalisation refuses to train on one sample.
BATCH_SIZE = 2
DEPTH = 3


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The user's options, as text where only the child that loads the target knows what it means."""

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
    batch_size: int = option("Samples in a batch.", BATCH_SIZE, metavar="N", parse=units.Whole(), shown=str(BATCH_SIZE))
    depth: int = option("Levels of the tree to show.", DEPTH, metavar="N", parse=units.Whole(), shown=str(DEPTH))

    def check(self) -> None:
        """Raises UsageError for a slip that needs no torch to be seen, and TargetError for a file that is not there."""
        parse_target(self.target)
        for one in parse_inputs(self.inputs):
            name = next((size for size in one.shape if isinstance(size, str)), None)
            if name is not None:
                raise UsageError(f"--input {one.name} names a dimension {name!r}", "", "give its length")
        if not self.optimizer.removeprefix("torch.optim.").isidentifier():
            raise UsageError(
                f"--optimizer {self.optimizer!r} is not a name", "", "use sgd, adam, adamw or another of torch.optim"
            )
        if self.amp is not None and self.dtype not in (None, "float32"):
            raise UsageError(f"--amp {self.amp} and --dtype {self.dtype} exclude each other", "", "give one of them")
