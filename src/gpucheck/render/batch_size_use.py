"""What the answer of `gpucheck find-batch-size` means for use, in words."""

from __future__ import annotations

from typing import Any


def answer(found: dict[str, Any]) -> list[str]:
    """The parts of the first line after the largest size."""
    return [text for text in (_recommended(found.get("recommended")), _knee(found.get("knee"))) if text]


def below(found: dict[str, Any]) -> list[str]:
    """The lines below it."""
    lines = []
    recommended, knee = found.get("recommended"), found.get("knee")
    if recommended and recommended["batch_size"] is None:
        lines.append(f"no size to recommend: {recommended['reason']}")
    if knee and knee["batch_size"] is None:
        lines.append(f"best value: not to be told ({knee['reason']})")
    return lines


def _recommended(recommended: dict[str, Any] | None) -> str:
    if not recommended or recommended["batch_size"] is None:
        return ""
    notes = [f"{recommended['headroom'] * 100:.0f} % headroom"]
    if recommended["speed"]:
        notes.append("same speed" if recommended["speed"] == "same" else f"{recommended['speed']} than the largest")
    return f"recommended: {recommended['batch_size']} ({', '.join(notes)})"


def _knee(knee: dict[str, Any] | None) -> str:
    if not knee or knee["batch_size"] is None:
        return ""
    return f"best value: {knee['batch_size']} (within 5 % of top speed)"
