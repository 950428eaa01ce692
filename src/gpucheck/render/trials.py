"""The trials of a search as they end: a table that grows by a line each time."""

from __future__ import annotations

from gpucheck import units
from gpucheck.render.blocks import SIGNS, UNKNOWN
from gpucheck.report.events import Trial
from gpucheck.report.finding import Verdict

# What ended a trial without a word on its size.
UNDECIDED = ("timeout", "inconclusive", "suspected")
# Wide enough for a batch of 65 536 and the longest outcome; a line that is known only later cannot move earlier ones.
_HEAD = f"{'trial':>6}{'batch':>9}   {'result':<22}{'peak':>10}{'samples/s':>12}   run"
# Of products: the longest dtype's name, and sides of six digits.
_PRODUCT_HEAD = f"{'trial':>6}   {'dtype':<10}{'M×N×K':<22}{'rate':>14}   look"


def head(trial: Trial) -> str:
    """The table's head, to be shown before the first trial, which is `trial`."""
    return _PRODUCT_HEAD if _is_product(trial) else _HEAD


def _is_product(trial: Trial) -> bool:
    return "flop_per_s" in trial.result


def verdict_of(outcome: str) -> Verdict:
    """How a trial's outcome is shown."""
    return "pass" if outcome == "fits" else "inconclusive" if outcome in UNDECIDED else "fail"


def line(trial: Trial) -> str:
    """One trial: its number, what was tried, what came out, and what it was for."""
    result = trial.result
    if _is_product(trial):
        shape = "×".join(str(result[side]) for side in "mnk")
        rate_text = units.flop_rate(result["flop_per_s"])
        return f"{trial.number:>6}   {result['dtype']:<10}{shape:<22}{rate_text:>14}   {result['purpose']}"
    outcome = str(result.get("outcome", ""))
    shown = f"{SIGNS[verdict_of(outcome)][0]} {outcome.replace('-', ' ')}"
    peak, rate = result.get("peak_bytes"), result.get("samples_per_s")
    peak_text = UNKNOWN if peak is None else units.capacity(peak)
    rate_text = UNKNOWN if rate is None else units.significant(rate)
    size, purpose = result.get("batch_size"), result.get("purpose", "")
    return f"{trial.number:>6}{size:>9}   {shown:<22}{peak_text:>10}{rate_text:>12}   {purpose}".rstrip()
