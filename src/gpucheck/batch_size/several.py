"""`--device all`: a search on each device in turn, the least of their answers, and a split in proportion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpucheck.batch_size import ends
from gpucheck.batch_size.recipe import in_words, kind_of_size
from gpucheck.errors import CannotLook, DeviceFailed
from gpucheck.machine import faults
from gpucheck.report.events import Answered, Emit, Event, Failed, Finished, Judged, Notice, Progress, Trial
from gpucheck.report.finding import Finding

# Devices are unlike where their rates or sizes differ by more than trials of one device do.
ALIKE = 0.05


@dataclass(frozen=True, slots=True)
class Share:
    """What one device takes of a step of all: so many samples, in so many seconds."""

    device: str
    batch_size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Split:
    """A batch divided over unlike devices so that all end their step at the same time.

    `samples_per_s` is that of all together, without what it takes to exchange gradients; `equal_samples_per_s` is what
    the same devices reach where each takes the least of their sizes.
    """

    shares: tuple[Share, ...]
    batch_size: int
    samples_per_s: float
    equal_samples_per_s: float


def each(ids: Sequence[str], search: Callable[[str, int, Emit], None], emit: Emit) -> None:
    """Search on each device; `search` is given the device, how many are left with it, and where to say what it finds.

    A device that fails, or cannot be looked at, does not cost the others their answer; raises the CannotLook of the
    latter in the end.
    """
    answers: list[dict[str, Any]] = []
    unseen: list[CannotLook] = []
    failed = False
    for place, device in enumerate(ids):
        try:
            search(device, len(ids) - place, _Relay(device, answers, emit))
        except DeviceFailed as error:
            failed = True
            emit(Failed(faults.of(error, ends.WHERE, device)))
        except CannotLook as error:
            unseen.append(error)
            emit(Notice(f"{device}: {error}", "warning"))
        finally:  # a signal too leaves what is known
            _say(answers, len(ids), emit)
            emit(Finished(device))
    if answers and not unseen and not failed:
        emit(Judged(finding(answers)))
    if unseen:
        raise unseen[0]


class _Relay:
    """Passes on what a search on one device says, with the device's name; keeps its answer."""

    def __init__(self, device: str, answers: list[dict[str, Any]], emit: Emit) -> None:
        self.device, self.answers, self.emit = device, answers, emit

    def __call__(self, event: Event) -> None:
        match event:
            case Answered("find_batch_size", value):
                self.answers[:] = [one for one in self.answers if one["device"]["id"] != value["device"]["id"]]
                self.answers.append(value)
            case Judged(found):
                evidence = {**found.evidence, "device": self.device}
                self.emit(Judged(replace(found, title=f"{self.device}: {found.title}", evidence=evidence)))
            case Notice(text, level):
                self.emit(Notice(f"{self.device}: {text}", level))
            case Progress():
                self.emit(replace(event, step=f"{self.device}, {event.step}"))
            case Trial():
                self.emit(replace(event, result={**event.result, "device": self.device}))
            case _:
                self.emit(event)


def _say(answers: Sequence[dict[str, Any]], wanted: int, emit: Emit) -> None:
    """The least answer as the command's own, and all of them; again after each device."""
    if not answers:
        return
    found = least(answers)
    emit(Answered("find_batch_size", found))
    divided = split(answers) if len(answers) == wanted else None
    emit(
        Answered(
            "find_batch_size_devices",
            {
                "least": found["device"]["id"],
                "max_batch_size": found["max_batch_size"],
                "at_least": found.get("at_least"),
                "devices": list(answers),
                "split": asdict(divided) if divided else None,
            },
        )
    )


def least(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answer that every device can take: the smallest, none at all before any, and an open one before a closed."""
    return min(answers, key=lambda one: (size_of(one) or 0, one["max_batch_size"] is not None))


def size_of(found: dict[str, Any]) -> int | None:
    """The largest size that passed on a device, whether or not more may fit; None where none did."""
    size = found["max_batch_size"]
    return found.get("at_least") if size is None else int(size)


def use(found: dict[str, Any]) -> tuple[int, float] | None:
    """The size to use on a device, the recommended one where there is one, and its samples/s; None where unknown."""
    recommended = found.get("recommended") or {}
    size, rate = recommended.get("batch_size"), recommended.get("samples_per_s")
    if size is None or not rate:
        size, rate = found["max_batch_size"], found["samples_per_s"]
    return (int(size), float(rate)) if size and rate else None


def split(answers: Sequence[dict[str, Any]]) -> Split | None:
    """A step divided in proportion to the devices' rates; None where they are alike, or one is not known."""
    uses = [use(found) for found in answers]
    known = [one for one in uses if one is not None]
    axis = any(found.get("axis") for found in answers)  # there the batch is fixed, and a length is not divided
    if axis or len(known) < len(answers) or len(known) < 2:
        return None
    sizes, rates = [size for size, _ in known], [rate for _, rate in known]
    if max(sizes) <= min(sizes) * (1 + ALIKE) and max(rates) <= min(rates) * (1 + ALIKE):
        return None
    seconds = min(size / rate for size, rate in known)
    multiple = max(int(found.get("multiple_of") or 1) for found in answers)
    shares = []
    for found, (size, rate) in zip(answers, known, strict=True):
        part = min(size, max(multiple, int(seconds * rate / multiple) * multiple))
        shares.append(Share(found["device"]["id"], part, part / rate))
    total = sum(one.batch_size for one in shares)
    slowest = max(one.seconds for one in shares)
    return Split(tuple(shares), total, total / slowest, len(known) * min(rates))


def finding(answers: Sequence[dict[str, Any]]) -> Finding:
    """What every device can take. Where one takes none, its own finding has said so already."""
    found = least(answers)
    size, device, axis = size_of(found), found["device"]["id"], (found.get("axis") or {}).get("name")
    evidence = {one["device"]["id"]: size_of(one) for one in answers}
    if size is None:
        return Finding("batch_size.all_devices", "fail", f"{device} takes no {kind_of_size(axis)} at all", "", evidence)
    if found["max_batch_size"] is None:
        title = f"at least {in_words(size, axis)} fits every device"
        return Finding("batch_size.all_devices", "inconclusive", title, f"the search on {device} did not end", evidence)
    message = f"the least is that of {device}" if len(set(evidence.values())) > 1 else "all have the same answer"
    return Finding("batch_size.all_devices", "pass", f"{in_words(size, axis)} fits every device", message, evidence)
