"""The command `gpucheck stress`: load all devices at the same time, each in a separate process, and collect their
results.

This process uses no device. If a driver ends or hangs a child, the results of the other children are kept. All children
begin at the same time, once each has its memory. A child that fails or stops reporting is ended, and the failure is
reported.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpucheck import messages
from gpucheck.cards.at_rest import is_not_read
from gpucheck.cards.card import is_dead
from gpucheck.errors import GpucheckError
from gpucheck.machine import choose, faults, inventory, kernel_driver, watchdog
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import Ending, Line, Lost, Talk
from gpucheck.report.codec import from_json
from gpucheck.report.events import Answered, Began, Emit, Failed, Finished, Notice, Planned, Progress, Skipped, Started
from gpucheck.report.facts import Device, Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import few, of_error
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.results.stress import StressDevice, StressPoint, StressResult, StressWrong
from gpucheck.stress.options import Plan, StressOptions, plan

WHERE = "stress"
CHILD = "gpucheck.stress.device"
POLL_S = 0.02
# A `Start` starts the child of a device, given by torch's name.
Start = Callable[[str], LineChild]


@dataclass(frozen=True, slots=True)
class World:
    """The functions that read the machine and start children; tests replace them.

    A child may send nothing for `opening_s` until it is ready, and for `silent_s` afterwards. The limits of benchmarks
    are the same.
    """

    read: Callable[[], Facts] = inventory.read
    log: Callable[[], tuple[tuple[str, ...] | None, str | None]] = kernel_driver.log
    start: Start = field(default=lambda device: LineChild(python_argv(CHILD)))
    opening_s: float = watchdog.OPENING_S
    silent_s: float = watchdog.SILENT_S


def command(options: StressOptions, emit: Emit, world: World | None = None) -> None:
    """Put the devices under load and emit each device's result. The findings come from `judge`.

    Raises UsageError and CannotLook for a device that is not there. On a signal, the result so far is emitted before
    the signal's exception is raised on.
    """
    world = world or World()
    division = plan(options.duration_s, tuple(options.selected))
    facts = world.read()
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    if chosen.notice:
        emit(Notice(chosen.notice))
    known = {device.id: device for device in facts.devices}
    devices = [_answer_of(device, known.get(device)) for device in chosen.ids]
    has_gpu = any(device.name != "cpu" for device in devices)
    log = world.log()[0] if has_gpu else None
    emit(Planned((WHERE,), chosen.ids))
    for device in chosen.ids:
        emit(Began(WHERE, device))
    whole = _Run(options, division, devices, world, emit)
    try:
        whole.run()
        if has_gpu:
            whole.count(facts, world.read(), xids_since(log, world.log()[0]))
    finally:
        whole.stop()
        emit(Answered("stress", whole.result()))
    for runner in whole.runners:
        ended = runner.answer.ended
        emit(Finished(WHERE, runner.name, ended if ended in ("fault", "error") else ""))


def _answer_of(name: str, known: Device | None) -> StressDevice:
    """Return the result of a device that has done nothing yet."""
    ref = DeviceRef(name, known.uuid if known else None, known.name if known else None)
    return StressDevice(name, ref, ref.name or "", power_limit_w=known.power_limit_w if known else None)


# -- the children ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Runner:
    """A device's child: its result so far, and whether the child is ready or has ended."""

    answer: StressDevice
    talk: Talk | None = None
    heard_s: float = 0.0
    limit_s: float = 0.0
    is_ready: bool = False
    is_over: bool = False
    step: str = "starting"

    @property
    def name(self) -> str:
        return self.answer.name

    def end(self, why: str) -> None:
        """End the child. Nothing more is read from it."""
        self.answer = replace(self.answer, ended=why)
        self.is_over = True
        if self.talk is not None:
            self.talk.stop()


class _Run:
    def __init__(
        self, options: StressOptions, division: Plan, devices: Sequence[StressDevice], world: World, emit: Emit
    ) -> None:
        self.options, self.plan, self.world, self.emit = options, division, world, emit
        self.runners = [_Runner(device) for device in devices]
        self._began_s: float | None = None
        self._shown_turn = -1

    def run(self) -> None:
        """Start all children, let them begin together, and read their lines until each has ended."""
        self.emit(Progress(f"filling memory: {few([runner.name for runner in self.runners], ', ')}"))
        for runner in self.runners:
            self._start(runner)
        self._listen(until=lambda runner: runner.is_ready)
        self._began_s = time.monotonic()
        for runner in self._at_work():
            runner.heard_s, runner.limit_s, runner.step = self._began_s, self.world.silent_s, self.plan.kinds[0]
            self._send(runner, {"go": True})
        self._listen(until=lambda runner: False)

    def stop(self) -> None:
        for runner in self.runners:
            if runner.talk is not None and not runner.is_over:
                runner.talk.stop()

    def result(self) -> StressResult:
        plan, answers = self.plan, tuple(runner.answer for runner in self.runners)
        return StressResult(plan.duration_s, plan.turn_s, plan.kinds, self.options.seed, answers)

    def count(self, before: Facts, after: Facts, xids: Counter[str] | None) -> None:
        """Record how much the driver's counters rose. `xids` are the run's Xid errors by PCI address, if known."""
        for runner in self.runners:
            first = next((device for device in before.devices if device.id == runner.name), None)
            if first is None or runner.name == "cpu":
                continue
            last = _same_device(first, after)
            was, now = _counted(first), {} if last is None else _counted(last)
            # A counter that fell was reset with the driver.
            risen = {key: now[key] - was[key] for key in was if key in now and now[key] >= was[key]}
            unknown = {} if risen else {"counters": "NVML did not report them before and after"}
            if first.uuid is not None or first.nvml_index is not None:
                error = after.driver.nvml_error if after.driver is not None else None
                # NVML may refuse the list of MIG instances; libcuda, the only source for some GPUs, may not answer.
                gone = last is None and error is None and first.nvml_index is not None and first.parent_uuid is None
                if gone or (last is not None and is_dead(last)):
                    risen["lost"] = 1
                elif last is None or (first.nvml_index is not None and last.nvml_index is None) or is_not_read(last):
                    unknown["state"] = f"after the run {error or 'it is not listed'}"
            if xids is not None and first.pci_address:
                risen["xids"] = xids[first.pci_address.lower()]
            runner.answer = replace(runner.answer, counters=risen, unknown={**runner.answer.unknown, **unknown})

    def _at_work(self) -> list[_Runner]:
        return [runner for runner in self.runners if not runner.is_over]

    def _start(self, runner: _Runner) -> None:
        runner.heard_s, runner.limit_s = time.monotonic(), self.world.opening_s
        ref, options = runner.answer.device, self.options
        setup = {"device": runner.name, "name": ref.name, "uuid": ref.uuid, **asdict(self.plan)}
        try:
            runner.talk = Talk(lambda: self.world.start(runner.name))
        except Lost as lost:
            self._lost(runner, lost.ending)
        else:
            self._send(runner, {**setup, "dtype": options.dtype, "fill": options.fill, "seed": options.seed})

    def _send(self, runner: _Runner, request: dict[str, Any]) -> None:
        assert runner.talk is not None
        try:
            runner.talk.send(request)
        except Lost as lost:
            self._lost(runner, lost.ending)

    def _listen(self, until: Callable[[_Runner], bool]) -> None:
        """Read lines of all children in turn, until each child has ended or `until` returns True for it."""
        while waiting := [runner for runner in self._at_work() if not until(runner)]:
            heard = [self._hear(runner) for runner in waiting]
            self._show()
            if not any(heard):
                time.sleep(POLL_S)

    def _hear(self, runner: _Runner) -> bool:
        """Read one line of a child, if there is one; return False if there is none."""
        assert runner.talk is not None
        try:
            line = runner.talk.receive(0.0)
        except Lost as lost:
            self._lost(runner, lost.ending)
        except GpucheckError as error:
            if faults.is_device(error):  # lost while it was opened or filled
                self._failed(runner, faults.of(error, WHERE, runner.name, step=runner.step))
            else:
                self.emit(Skipped(of_error(error, runner.name)))
                runner.end("error")
        else:
            if line is None:
                self._silent(runner)
                return False
            self._take(runner, line)
        return True

    def _failed(self, runner: _Runner, fault: Fault) -> None:
        self.emit(Failed(replace(fault, step=fault.step or runner.step)))
        runner.end("fault")

    def _silent(self, runner: _Runner) -> None:
        now, silent_s = time.monotonic(), self.world.silent_s
        quiet_s = now - runner.heard_s
        # A child that still sends lines long after the end of its plan has failed too.
        late = self._began_s is not None and now > self._began_s + self.plan.duration_s + max(silent_s, runner.limit_s)
        if quiet_s >= runner.limit_s or late:
            self._failed(
                runner, Fault("device", WHERE, runner.name, "TimeoutError", "", poisons=True, silent_s=quiet_s)
            )

    def _take(self, runner: _Runner, line: Line) -> None:
        """Record the content of a child's line."""
        usual_s = self.world.silent_s if self._began_s is not None else self.world.opening_s
        runner.heard_s, runner.limit_s = time.monotonic(), max(usual_s, float(line.get("busy", 0.0)))
        ready = dict(line.get("ready", {}))
        runner.is_ready = runner.is_ready or "ready" in line
        unknown = {**runner.answer.unknown, **ready.pop("unknown", {}), **line.get("unknown", {})}
        answer = replace(runner.answer, **ready, **line.get("totals", {}), unknown=unknown)
        if "wrong" in line:
            answer = replace(answer, wrong=(*answer.wrong, from_json(StressWrong, line["wrong"])))
        if "point" in line:
            answer = replace(answer, points=(*answer.points, from_json(StressPoint, line["point"])))
        runner.answer, runner.step = answer, str(line.get("step", runner.step))
        if "fault" in line:
            self._failed(runner, from_json(Fault, line["fault"]))
        elif "end" in line:
            runner.end("")

    def _lost(self, runner: _Runner, ending: Ending) -> None:
        """Record a child that died. The cause is the error in its last output, else the way in which it ended."""
        cause = messages.cause_of(ending.stderr)
        killed = "; the system may have run out of memory" if ending.signal == "SIGKILL" else ""
        cause_id, is_lost = (None, False) if cause is None else (cause.id, cause.poisons)
        text = f"{ending.in_words}{killed}"
        self._failed(runner, Fault("device", WHERE, runner.name, "ProcessEnded", text, "", cause_id, is_lost))

    def _show(self) -> None:
        """Report each turn as it begins."""
        if self._began_s is None:
            return
        point = self.plan.point_at(time.monotonic() - self._began_s)
        turn = point // self.plan.parts
        if point < self.plan.points and turn != self._shown_turn:
            self._shown_turn = turn
            self.emit(Progress(self.plan.kind_of(point), turn, self.plan.turns))


# -- the driver's counters ---------------------------------------------------------------------------------------------


def xids_since(before: Sequence[str] | None, after: Sequence[str] | None) -> Counter[str] | None:
    """Return the Xid errors of each PCI address in lines that only the later log has; None if either log cannot be
    read.

    The log drops its oldest lines, so the number of lines may fall although new ones are added.
    """
    if before is None or after is None:
        return None
    counted: Counter[str] = Counter()
    for error in kernel_driver.events(tuple((Counter(after) - Counter(before)).elements())).xids or ():
        counted[error.pci_address] += error.count
    return counted


def _same_device(first: Device, after: Facts) -> Device | None:
    """Return the device in a later reading, found by its UUID: after a GPU is lost, the indexes of the following GPUs
    change."""
    known = first.uuid or first.pci_address or first.id
    return next((device for device in after.devices if known in (device.uuid, device.pci_address, device.id)), None)


def _counted(device: Device) -> dict[str, int]:
    """Return the known error counters of a device, by name."""
    ecc, rows, link = device.ecc, device.remapped_rows, device.pcie
    counters = {
        "ecc_corrected": ecc.volatile_corrected if ecc else None,
        "ecc_uncorrected": ecc.volatile_uncorrected if ecc else None,
        "rows_remapped": rows.correctable + rows.uncorrectable if rows else None,
        "rows_pending": int(rows.pending) if rows else None,
        "rows_failed": int(rows.failed) if rows else None,
        "pcie_replays": link.replays if link else None,
    }
    return {name: value for name, value in counters.items() if value is not None}
