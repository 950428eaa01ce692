"""How the user wants the search to go: how near to the maximum, from where, by which sizes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck.batch_size.search import DEFAULT_TOLERANCE, DEVICE_PEAK_NOISE, PEAK_NOISE, Search
from gpucheck.errors import UsageError

# A tolerance of half the answer says less than doubling alone would.
LARGEST_TOLERANCE = 0.5


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What was asked for. `tolerance` None is the default of 2 %; a fraction of the answer."""

    tolerance: float | None = None
    exact: bool = False
    avoid_oom: bool = False
    multiple_of: int = 1
    start: int | None = None

    def check(self, cap: int, axis: str | None = None) -> None:
        """Raises UsageError for what cannot be asked for, alone or together.

        `cap` is --max-batch-size, or the greatest length to try along `axis`.
        """
        top = f"--max-batch-size {cap}" if axis is None else f"{cap}, the greatest length of {axis}"
        if self.exact and self.tolerance is not None:
            raise UsageError("--exact and --tolerance exclude each other", "", "--exact is a tolerance of nothing")
        if self.exact and self.avoid_oom:
            raise UsageError(
                "--exact and --avoid-oom exclude each other", "an exact answer takes a failure right above it"
            )
        if self.tolerance is not None and not 0 < self.tolerance <= LARGEST_TOLERANCE:
            given = f"{self.tolerance * 100:g}%"
            raise UsageError(
                f"--tolerance {given} is out of range", "", "give more than 0% and up to 50%, or --exact for none"
            )
        if self.multiple_of < 1:
            raise UsageError(
                f"--multiple-of {self.multiple_of} is no {'batch size' if axis is None else 'length'}",
                "",
                "give 1 or more, like 8",
            )
        if self.multiple_of > cap:
            raise UsageError(f"--multiple-of {self.multiple_of} is more than {top}", "no size is left to try")
        if self.start is not None and not 1 <= self.start <= cap:
            raise UsageError(f"--start {self.start} is out of range", f"it lies between 1 and {top}")

    def search(self, cap: int, budget_bytes: int, *, is_cpu: bool) -> Search:
        """The search that was asked for, before a child has told its smallest batch and its dangers."""
        return Search(
            cap=cap,
            tolerance=0.0 if self.exact else DEFAULT_TOLERANCE if self.tolerance is None else self.tolerance,
            budget_bytes=budget_bytes,
            seek_failure=not self.avoid_oom,
            multiple_of=self.multiple_of,
            start=self.start,
            noise=PEAK_NOISE if is_cpu else DEVICE_PEAK_NOISE,
        )
