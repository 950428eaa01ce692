"""The trials of a search as they end: a table that grows by a line each time."""

from __future__ import annotations

from gpucheck import units
from gpucheck.render.blocks import SIGNS, UNKNOWN
from gpucheck.report.events import Trial
from gpucheck.report.finding import Verdict

# What ended a trial without a word on its size.
UNDECIDED = ("timeout", "inconclusive", "suspected", "killed", "out-of-time")
# Wide enough for a batch of 65 536 and the longest outcome; a line that is known only later cannot move earlier ones.
_SIZE_WIDTH, _RATE_WIDTH = 9, 12
# Of products: the longest dtype's name, and sides of six digits.
_PRODUCT_HEAD = f"{'trial':>6}   {'dtype':<10}{'M×N×K':<22}{'rate':>14}   look"


def head(trial: Trial) -> str:
    """The table's head, to be shown before the first trial, which is `trial`."""
    if _is_product(trial):
        return _PRODUCT_HEAD
    size, rate = (trial.axis, f"{trial.axis}/s") if trial.axis else ("batch", "samples/s")
    return _laid_out(trial, "trial", size, "result", "peak", rate, "run")


def _is_product(trial: Trial) -> bool:
    return "flop_per_s" in trial.result


def verdict_of(outcome: str, purpose: str) -> Verdict:
    """How a trial's outcome is shown."""
    if purpose == "default malloc":
        # Its peak is told for comparison; the answer does not depend on it.
        return "info"
    return "pass" if outcome == "fits" else "inconclusive" if outcome in UNDECIDED else "fail"


def line(trial: Trial) -> str:
    """One trial: its number, what was tried, what came out, and what it was for."""
    result = trial.result
    if _is_product(trial):
        shape = "×".join(str(result[side]) for side in "mnk")
        rate_text = units.flop_rate(result["flop_per_s"])
        return f"{trial.number:>6}   {result['dtype']:<10}{shape:<22}{rate_text:>14}   {result['purpose']}"
    outcome, purpose = str(result.get("outcome", "")), str(result.get("purpose", ""))
    shown = f"{SIGNS[verdict_of(outcome, purpose)][0]} {outcome.replace('-', ' ')}"
    peak, rate = result.get("peak_bytes"), result.get("samples_per_s")
    peak_text = UNKNOWN if peak is None else units.capacity(peak)
    rate_text = UNKNOWN if rate is None else units.significant(rate)
    run_for = run(purpose, resumed=bool(result.get("resumed")))
    return _laid_out(trial, str(trial.number), str(result.get("batch_size")), shown, peak_text, rate_text, run_for)


def run(purpose: str, *, resumed: bool) -> str:
    """What a trial was run for; one that was taken over from a log says so."""
    return f"{purpose} (earlier)" if resumed else purpose


def _laid_out(trial: Trial, number: str, size: str, shown: str, peak: str, rate: str, purpose: str) -> str:
    name = len(trial.axis or "")
    wide, wide_rate = max(_SIZE_WIDTH, name + 2), max(_RATE_WIDTH, name + 4)
    return f"{number:>6}{size:>{wide}}   {shown:<22}{peak:>10}{rate:>{wide_rate}}   {purpose}".rstrip()
