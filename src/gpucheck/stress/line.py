"""How a run goes, in one line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucheck import units
from gpucheck.report.results.stress import StressDevice


def live_text(live: Sequence[tuple[str, dict[str, Any], StressDevice]]) -> str:
    """The live line: what is at work, how fast in all, and the hottest, the hungriest and the slowest clock."""
    kind = str(live[0][1]["kind"])
    alike = [told for _, told, _ in live if told["kind"] == kind]
    parts = [f"{kind}: {rate_text(sum(told['rate'] for told in alike), str(alike[0]['unit']))}"]
    if curve := spark([point.rate.median for point in live[0][2].points if point.kind == kind]):
        parts.append(curve)
    told = [one for _, one, _ in live]
    clocks = [one["sm_clock_hz"] for one in told if one.get("sm_clock_hz")]
    parts += [f"{min(clocks) / 1e6:.0f} MHz"] if clocks else []
    watts = [one["power_w"] for one in told if one.get("power_w")]
    parts += [f"{sum(watts):.0f} W"] if watts else []
    heats = [one["temperature_celsius"] for one in told if one.get("temperature_celsius")]
    parts += [f"{max(heats):.0f} °C"] if heats else []
    wrong = sum(answer.wrong_steps for _, _, answer in live)
    parts += [f"{wrong} wrong"] if wrong else []
    return " ".join(parts)


def rate_text(rate: float, unit: str) -> str:
    """A rate in its own units."""
    return units.byte_rate(rate) if unit == "B/s" else units.flop_rate(rate, unit.removesuffix("/s") + "/s")


SPARKS = "▁▂▃▄▅▆▇█"
MOST_SPARKS = 16


def spark(values: Sequence[float], most: int = MOST_SPARKS) -> str:
    """The values as a row of at most so many bars, the largest full; each the median of neighbours."""
    if not values or max(values) <= 0:
        return ""
    size = -(-len(values) // most)
    groups = [sorted(values[at : at + size]) for at in range(0, len(values), size)]
    middle = [group[len(group) // 2] for group in groups]
    return "".join(SPARKS[round(max(value, 0.0) / max(middle) * (len(SPARKS) - 1))] for value in middle)
