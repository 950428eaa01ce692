"""`--device all`: a search on each device in turn, the least of their answers, and a split in proportion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpucheck.batch_size.plan import in_words, kind_of_size
from gpucheck.batch_size.runner import WHERE
from gpucheck.errors import CannotLook, DeviceFailed
from gpucheck.machine import faults
from gpucheck.report.events import Answered, Emit, Event, Failed, Finished, Judged, Notice, Progress, Trial
from gpucheck.report.finding import Finding
from gpucheck.report.results.find_batch_size import DeviceShare, FoundBatchSize, FoundBatchSizes, StepSplit

# Devices are unlike where their rates or sizes differ by more than trials of one device do.
ALIKE = 0.05


def each(ids: Sequence[str], search: Callable[[str, int, Emit], None], emit: Emit) -> None:
    """Search on each device; `search` is given the device, how many are left with it, and where to say what it finds.

    A device that fails, or cannot be looked at, does not cost the others their answer; raises the CannotLook of the
    latter in the end.
    """
    answers: list[FoundBatchSize] = []
    unseen: list[CannotLook] = []
    failed = False
    for place, device in enumerate(ids):
        try:
            search(device, len(ids) - place, _Relay(device, answers, emit))
        except DeviceFailed as error:
            failed = True
            emit(Failed(faults.of(error, WHERE, device)))
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

    def __init__(self, device: str, answers: list[FoundBatchSize], emit: Emit) -> None:
        self.device, self.answers, self.emit = device, answers, emit

    def __call__(self, event: Event) -> None:
        match event:
            case Answered("find_batch_size", value):
                self.answers[:] = [one for one in self.answers if one.device.id != value.device.id]
                self.answers.append(value)
            case Judged(found):
                self.emit(Judged(self._named(found)))
            case Failed(fault, found):
                self.emit(Failed(fault, found and self._named(found)))
            case Notice(text, level):
                self.emit(Notice(f"{self.device}: {text}", level))
            case Progress():
                self.emit(replace(event, step=f"{self.device}, {event.step}"))
            case Trial():
                self.emit(replace(event, result={**event.result, "device": self.device}))
            case _:
                self.emit(event)

    def _named(self, found: Finding) -> Finding:
        evidence = {**found.evidence, "device": self.device}
        return replace(found, title=f"{self.device}: {found.title}", evidence=evidence, device=self.device)


def _say(answers: Sequence[FoundBatchSize], wanted: int, emit: Emit) -> None:
    """The least answer as the command's own, and all of them; again after each device."""
    if not answers:
        return
    found = least(answers)
    emit(Answered("find_batch_size", found))
    every = FoundBatchSizes(
        least=found.device.id,
        max_batch_size=found.max_batch_size,
        at_least=found.at_least,
        devices=tuple(answers),
        split=split(answers) if len(answers) == wanted else None,
    )
    emit(Answered("find_batch_size_devices", every))


def least(answers: Sequence[FoundBatchSize]) -> FoundBatchSize:
    """The answer that every device can take: the smallest, none at all before any, and an open one before a closed."""
    return min(answers, key=lambda found: (found.largest or 0, not found.is_open))


def use(found: FoundBatchSize) -> tuple[int, float] | None:
    """The size to use on a device, the recommended one where there is one, and its samples/s; None where unknown."""
    recommended = found.recommended
    size, rate = (recommended.batch_size, recommended.samples_per_s) if recommended else (None, None)
    if size is None or not rate:
        size, rate = None if found.is_open else found.largest, found.samples_per_s
    return (size, rate) if size and rate else None


def split(answers: Sequence[FoundBatchSize]) -> StepSplit | None:
    """A step divided in proportion to the devices' rates; None where they are alike, or one is not known."""
    known = [used for found in answers if (used := use(found)) is not None]
    along = any(found.axis for found in answers)  # there the batch is fixed, and a length is not divided
    if along or len(known) < len(answers) or len(known) < 2:
        return None
    sizes, rates = [size for size, _ in known], [rate for _, rate in known]
    if max(sizes) <= min(sizes) * (1 + ALIKE) and max(rates) <= min(rates) * (1 + ALIKE):
        return None
    seconds = min(size / rate for size, rate in known)
    multiple = max(found.multiple_of for found in answers)
    shares = []
    for found, (size, rate) in zip(answers, known, strict=True):
        part = min(size, max(multiple, int(seconds * rate / multiple) * multiple))
        shares.append(DeviceShare(found.device.id, part, part / rate))
    total = sum(share.batch_size for share in shares)
    slowest = max(share.seconds for share in shares)
    return StepSplit(tuple(shares), total, total / slowest, len(known) * min(rates))


def finding(answers: Sequence[FoundBatchSize]) -> Finding:
    """What every device can take. Where one takes none, its own finding has said so already."""
    found = least(answers)
    size, device, axis = found.largest, found.device.id, found.axis_name
    evidence = {one.device.id: one.largest for one in answers}
    if size is None:
        return Finding("batch_size.all_devices", "fail", f"{device} fits no {kind_of_size(axis)} at all", "", evidence)
    if found.is_open:
        title = f"at least {in_words(size, axis)} fits every device"
        return Finding("batch_size.all_devices", "inconclusive", title, f"the search on {device} did not end", evidence)
    message = f"least on {device}" if len(set(evidence.values())) > 1 else "the same on all"
    return Finding("batch_size.all_devices", "pass", f"{in_words(size, axis)} fits every device", message, evidence)
