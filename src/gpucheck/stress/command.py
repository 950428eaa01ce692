"""The command `gpucheck stress`: load all devices at the same time, each in a separate process.

This process uses no device. If a driver kills or hangs a child, the results of the other children are kept. All
children begin together, once each has its memory. A child that fails or stops reporting is ended.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from gpucheck import messages
from gpucheck.errors import GpucheckError
from gpucheck.health.hardware import is_not_read
from gpucheck.health.nvidia import is_dead
from gpucheck.machine import choose, faults, inventory, kernel_driver, watchdog
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import ChildSession, Lost, Message
from gpucheck.report.codec import from_json
from gpucheck.report.events import Answered, Began, Emit, Failed, Finished, Notice, Planned, Progress, Skipped, Started
from gpucheck.report.facts import Device, Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import of_error
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.report import few
from gpucheck.report.results.stress import StressDevice, StressPoint, StressResult, StressWrong
from gpucheck.stress.options import StressOptions, StressPlan, plan

# The command, as faults name it.
COMMAND = "stress"
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Environment:
    """The functions that read the machine and start a child, which tests replace. A child may be silent for `opening_s`
    seconds until it is ready, and for `silent_s` seconds afterwards, as in benchmarks."""

    read: Callable[[], Facts] = inventory.read
    log: Callable[[], tuple[tuple[str, ...] | None, str | None]] = kernel_driver.log
    start: Callable[[str], LineChild] = field(default=lambda device: LineChild(python_argv("gpucheck.stress.device")))
    opening_s: float = watchdog.OPENING_S
    silent_s: float = watchdog.SILENT_S


def command(options: StressOptions, emit: Emit, environment: Environment | None = None) -> None:
    """Put the devices under load and emit all results, also on a signal. Raises UsageError and CannotLook."""
    environment = environment or Environment()
    stress_plan = plan(options.duration_s, tuple(options.selected))
    facts = environment.read()
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    if chosen.notice:
        emit(Notice(chosen.notice))
    known = {device.id: device for device in facts.devices}
    devices = []
    for name in chosen.ids:
        device = known.get(name, Device("", name))
        ref = DeviceRef(name, device.uuid, device.name)
        devices.append(StressDevice(name, ref, device.name or "", power_limit_w=device.power_limit_w))
    has_gpu = any(name != "cpu" for name in chosen.ids)
    log = environment.log()[0] if has_gpu else None
    emit(Planned((COMMAND,), chosen.ids))
    for name in chosen.ids:
        emit(Began(COMMAND, name))
    run = _StressRun(options, stress_plan, devices, environment, emit)
    try:
        run.run()
        if has_gpu:
            run.count(facts, environment.read(), xids_since(log, environment.log()[0]))
    finally:
        for runner in run.at_work():
            runner.end("signal")
        answers = tuple(runner.answer for runner in run.runners)
        result = StressResult(stress_plan.duration_s, stress_plan.turn_s, stress_plan.kinds, options.seed, answers)
        emit(Answered("stress", result))
    for answer in answers:
        emit(Finished(COMMAND, answer.name, answer.ended if answer.ended in ("fault", "error") else ""))


# -- the children ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Runner:
    """The child of a device, and its result so far."""

    answer: StressDevice
    session: ChildSession | None = None
    heard_s: float = 0.0
    limit_s: float = 0.0
    is_ready: bool = False
    is_over: bool = False
    step: str = "starting"

    @property
    def name(self) -> str:
        return self.answer.name

    def end(self, why: str) -> None:
        """End the child and read nothing more."""
        self.answer = replace(self.answer, ended=why)
        self.is_over = True
        if self.session is not None:
            self.session.stop()


class _StressRun:
    def __init__(
        self,
        options: StressOptions,
        stress_plan: StressPlan,
        devices: Sequence[StressDevice],
        environment: Environment,
        emit: Emit,
    ) -> None:
        self.options, self.plan, self.environment, self.emit = options, stress_plan, environment, emit
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
        for runner in self.at_work():
            runner.heard_s, runner.limit_s, runner.step = self._began_s, self.environment.silent_s, self.plan.kinds[0]
            assert runner.session is not None
            with self._catching(runner):
                runner.session.send({"go": True})
        self._listen(until=lambda runner: False)

    def count(self, before: Facts, after: Facts, xids: Counter[str] | None) -> None:
        """Record the rise of the driver's counters. `xids` counts the run's Xid errors by PCI address, if known."""
        for runner in self.runners:
            first = next((device for device in before.devices if device.id == runner.name), None)
            if first is None or runner.name == "cpu":
                continue
            # The UUID comes first: after a GPU is lost, the indexes of the following GPUs change.
            key = first.uuid or first.pci_address or first.id
            last = next((row for row in after.devices if key in (row.uuid, row.pci_address, row.id)), None)
            old, new = _counted(first), {} if last is None else _counted(last)
            # A counter that fell was reset with the driver.
            risen = {name: new[name] - old[name] for name in old if name in new and new[name] >= old[name]}
            unknown = {} if risen else {"counters": "NVML did not report them before and after"}
            if first.uuid is not None or first.nvml_index is not None:
                error = after.driver.nvml_error if after.driver is not None else None
                # A missing GPU is lost only if NVML answers and listed this GPU before. NVML may refuse to list MIG
                # instances, and libcuda, the only source for some GPUs, may not answer.
                is_gone = last is None and error is None and first.nvml_index is not None and first.parent_uuid is None
                if is_gone or (last is not None and is_dead(last)):
                    risen["lost"] = 1
                elif last is None or (first.nvml_index is not None and last.nvml_index is None) or is_not_read(last):
                    unknown["state"] = f"after the run {error or 'it is not listed'}"
            if xids is not None and first.pci_address:
                risen["xids"] = xids[first.pci_address.lower()]
            runner.answer = replace(runner.answer, counters=risen, unknown={**runner.answer.unknown, **unknown})

    def at_work(self) -> list[_Runner]:
        return [runner for runner in self.runners if not runner.is_over]

    def _start(self, runner: _Runner) -> None:
        runner.heard_s, runner.limit_s = time.monotonic(), self.environment.opening_s
        ref, options = runner.answer.device, self.options
        setup = {"device": runner.name, "name": ref.name, "uuid": ref.uuid, **asdict(self.plan)}
        setup |= {"dtype": options.dtype, "fill": options.fill, "seed": options.seed}
        with self._catching(runner):
            runner.session = ChildSession(lambda: self.environment.start(runner.name))
            runner.session.send(setup)

    def _listen(self, until: Callable[[_Runner], bool]) -> None:
        """Read lines of all children in turn. Stop when each child has ended or `until` returns True for the child."""
        while waiting := [runner for runner in self.at_work() if not until(runner)]:
            heard = [self._hear(runner) for runner in waiting]
            self._show()
            if not any(heard):
                time.sleep(POLL_S)

    def _hear(self, runner: _Runner) -> bool:
        assert runner.session is not None
        with self._catching(runner):
            if (line := runner.session.receive(0.0)) is None:
                self._silent(runner)
                return False
            self._take(runner, line)
        return True

    @contextlib.contextmanager
    def _catching(self, runner: _Runner) -> Iterator[None]:
        """Record an error that the child sent, or the child's early end with the cause in its last output."""
        try:
            yield
        except Lost as lost:
            ending, cause = lost.ending, messages.cause_of(lost.ending.stderr)
            killed = "; the system may have run out of memory" if ending.signal == "SIGKILL" else ""
            fault = Fault("device", COMMAND, runner.name, "ProcessEnded", f"{ending.in_words}{killed}")
            self._failed(runner, replace(fault, cause=cause.id, poisons=cause.poisons) if cause else fault)
        except GpucheckError as error:
            if faults.is_device(error):  # the device was lost while it was opened or filled
                self._failed(runner, faults.of(error, COMMAND, runner.name, step=runner.step))
            else:
                self.emit(Skipped(of_error(error, runner.name)))
                runner.end("error")

    def _failed(self, runner: _Runner, fault: Fault) -> None:
        self.emit(Failed(replace(fault, step=fault.step or runner.step)))
        runner.end("fault")

    def _silent(self, runner: _Runner) -> None:
        now, silent_s = time.monotonic(), self.environment.silent_s
        quiet_s = now - runner.heard_s
        # A child that still sends lines long after the end of the plan has failed too.
        latest_s = self.plan.duration_s + max(silent_s, runner.limit_s)
        if quiet_s >= runner.limit_s or (self._began_s is not None and now > self._began_s + latest_s):
            fault = Fault("device", COMMAND, runner.name, "TimeoutError", "", poisons=True, silent_s=quiet_s)
            self._failed(runner, fault)

    def _take(self, runner: _Runner, line: Message) -> None:
        usual_s = self.environment.opening_s if self._began_s is None else self.environment.silent_s
        runner.heard_s, runner.limit_s = time.monotonic(), max(usual_s, line.get("busy", 0.0))
        runner.is_ready = runner.is_ready or "ready" in line
        answer = replace(runner.answer, **line.get("ready", {}), **line.get("totals", {}))
        if "wrong" in line:
            answer = replace(answer, wrong=(*answer.wrong, from_json(StressWrong, line["wrong"])))
        if "point" in line:
            answer = replace(answer, points=(*answer.points, from_json(StressPoint, line["point"])))
        runner.answer, runner.step = answer, line.get("step", runner.step)
        if "fault" in line:
            self._failed(runner, from_json(Fault, line["fault"]))
        elif "end" in line:
            runner.end("")

    def _show(self) -> None:
        if self._began_s is None:
            return
        point = self.plan.point_at(time.monotonic() - self._began_s)
        if (turn := point // self.plan.parts) not in (self._shown_turn, self.plan.turns):
            self._shown_turn = turn
            self.emit(Progress(self.plan.kind_of(point), turn, self.plan.turns))


def xids_since(before: Sequence[str] | None, after: Sequence[str] | None) -> Counter[str] | None:
    """Return the number of Xid errors by PCI address in lines that only the later log has; None if a log is unreadable.
    The lines are compared, not counted, because the log drops its oldest lines."""
    if before is None or after is None:
        return None
    counted: Counter[str] = Counter()
    for error in kernel_driver.events(tuple((Counter(after) - Counter(before)).elements())).xids or ():
        counted[error.pci_address] += error.count
    return counted


def _counted(device: Device) -> dict[str, int]:
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
