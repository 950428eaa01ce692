"""What the answer of `gpucheck find-batch-size` means for use, in words."""

from __future__ import annotations

from typing import Any

from gpucheck import units

LIMITS = {
    "memory": "memory",
    "max-batch-size": "--max-batch-size",
    "time": "time: it ran out before the search ended",
    "trial-timeout": "time: a trial ran into its limit, see --trial-timeout",
    "kernel-limit": "a kernel's own limit, whatever the memory",
    "safety": "safety: filling the memory is dangerous here",
    "trials": "the number of trials",
    "interrupted": "an interruption",
    "device": "the device, which broke",
    "killed": "a kill that was not for want of memory",
    "no-process": "a process that could not be set up",
    "disturbed": "other processes, which disturbed the trials",
}


def limit(found: dict[str, Any]) -> str:
    """What holds the answer where it is, in words; empty where nothing does."""
    factor = found.get("limiting_factor")
    if factor is None:
        return ""
    if found.get("axis") and factor == "max-batch-size":
        return "the greatest length to try"
    return LIMITS.get(factor, str(factor))


def answer(found: dict[str, Any]) -> list[str]:
    """The parts of the first line after the largest size."""
    return [text for text in (_recommended(found.get("recommended")), _knee(found.get("knee"))) if text]


def below(found: dict[str, Any]) -> list[str]:
    """The lines below it."""
    axis = (found.get("axis") or {}).get("name")
    told = (_split(found.get("memory_split"), axis), _limit(found), _confidence(found.get("confidence")))
    lines = [text for text in (*told, _checks(found.get("checks") or []), _gap(found.get("fragmentation"))) if text]
    return lines


def _limit(found: dict[str, Any]) -> str:
    """What holds the answer where it is, and the size that shows it."""
    factor = limit(found)
    if not factor:
        return ""
    text = f"limited by {factor}"
    if found.get("predicted_above") is not None:
        return f"{text}; {found['predicted_above']} is predicted above the budget"
    if found.get("first_failing") is None:
        return text
    outcome = str(found["first_failing_outcome"]).replace("-", " ")
    if found.get("first_failing_at_once"):
        outcome = f"{outcome}: {found['first_failing_reason']}"
    return f"{text}; first that fails: {found['first_failing']} ({outcome})"


def _confidence(confidence: dict[str, Any] | None) -> str:
    if not confidence:
        return ""
    # What speaks against it is what a reader must know; where nothing does, why not.
    reasons = confidence["doubts"] or confidence["support"]
    return f"confidence: {confidence['level']}" + (f" ({', '.join(reasons)})" if reasons else "")


def _checks(checks: list[dict[str, Any]]) -> str:
    """What else passed; what failed is a finding."""
    passed = [check for check in checks if check["outcome"] == "fits"]
    sizes = [str(check["batch_size"]) for check in passed if check["kind"] == "partial batch"]
    parts = [f"a partial last batch of {' and of '.join(sizes)}"] if sizes else []
    parts += ["an evaluation step"] if any(check["kind"] == "evaluation" for check in passed) else []
    return f"passes too: {', '.join(parts)}" if parts else ""


def _gap(gap: dict[str, Any] | None) -> str:
    if not gap:
        return ""
    share = gap["gap_bytes"] / gap["reserved_bytes"] * 100
    return f"fragmentation: {units.capacity(gap['gap_bytes'])} reserved beyond what is allocated ({share:.0f} %)"


def advice(found: dict[str, Any]) -> list[str]:
    """What to do with it."""
    how = found.get("accumulation")
    if not how:
        return []
    text = f"for an effective batch of {how['effective_batch']}: micro-batch {how['micro_batch']}"
    if how["steps"] == 1:
        return [f"{text}, which needs no accumulation"]
    if not how["smaller"]:
        return [f"{text} × {how['steps']} accumulation steps"]
    return [
        f"{text} × {how['steps'] - how['smaller']} and {how['micro_batch'] - 1} × {how['smaller']} accumulation steps: "
        f"{how['effective_batch']} has no divisor near {how['limit']}"
    ]


def _split(split: dict[str, Any] | None, axis: str | None) -> str:
    """Where the memory goes, in one line; empty where nothing of it is known."""
    if not split:
        return ""
    names = (("parameter_bytes", "weights"), ("gradient_bytes", "gradients"), ("optimizer_bytes", "optimizer"))
    held = {name: split[key] for key, name in names if split[key]}
    parts = []
    if split["activation_bytes_per_sample"] is not None:
        one = f"each unit of {axis}" if axis else "each sample"
        parts.append(f"{one} costs {units.capacity(split['activation_bytes_per_sample'])} of activations")
    if held:
        # One unit for all of them, so that they can be compared at a glance.
        steps = ((units.GIB, "GiB"), (units.MIB, "MiB"), (units.KIB, "KiB"))
        scale, unit = next((step for step in steps if max(held.values()) >= 0.1 * step[0]), steps[-1])
        texts = [f"{name} {units.significant(size / scale, 2)}" for name, size in held.items()]
        parts.append(f"{', '.join(texts)} {unit}")
    if split["fixed_bytes"]:
        parts.append(f"the rest {units.capacity(split['fixed_bytes'])} whatever the {'length' if axis else 'size'}")
    return "; ".join(parts)


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
