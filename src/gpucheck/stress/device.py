"""The child of `stress`, which loads one device.

The parent sends the setup in a line, the child answers `ready`, and begins when the parent sends `go`. Then the child
sends lines: `step` about twice a second, `point` at the end of a point of the curve, `wrong` for each wrong step.
Before long work without lines, it sends `busy` (seconds). The last line has `end`, with `fault` if the device failed.
"""

from __future__ import annotations

import collections
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpucheck.errors import CannotLook
from gpucheck.machine import faults, host
from gpucheck.machine.child_stdio import Send, claim_stdout, raised, requests
from gpucheck.measure import telemetry
from gpucheck.measure.telemetry import Sample, Watch
from gpucheck.measure.timing import LEAST_HOST_WINDOW_S
from gpucheck.report.codec import to_json
from gpucheck.report.results.stress import StressPoint, StressSpread, StressWrong
from gpucheck.stress.options import DEFAULT_FILL, DEFAULT_FILL_CPU, StressPlan

if TYPE_CHECKING:
    from gpucheck.bench.dtypes import Dtype
    from gpucheck.machine.accel import Accel
    from gpucheck.stress.work import StressWork

# The command, as faults name it.
COMMAND = "stress"
REPORT_EVERY_S = 0.5
# The longest time of a check against float64, on a host that is busy with the checks of all devices.
BUSY_S = 600.0
# The most wrong steps that are reported one by one. Others are only counted.
MOST_WRONG = 16


def main() -> int:
    say = claim_stdout()
    lines = requests()
    setup = next(lines)
    # On a CPU, threads must not spin while they wait for each other, because other programs may need the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from gpucheck.machine import accel

    try:
        opened = accel.open_device(setup["device"], name=setup["name"], uuid=setup["uuid"])
        opened.make_current()
        with Watch(opened.uuid) as watch:
            run(setup, opened, watch, say, lambda: next(lines))
    except CannotLook as error:
        say(raised(error))
    except Exception as error:  # noqa: BLE001 - torch and its driver are under test, so any error is the result
        say({"busy": BUSY_S})
        fault = faults.of(error, COMMAND, setup["device"], step=setup.get("step", ""))
        say({"fault": to_json(fault), "end": True})
    return 0


def run(setup: dict[str, Any], accel: Accel, watch: Watch, say: Send, go: Callable[[], object]) -> None:
    """Work through the plan. `go` returns when the work may begin. `setup["step"]` is the current step."""
    from gpucheck.stress.work import StressWork
    from gpucheck.work import precision

    plan = StressPlan(tuple(setup["kinds"]), setup["duration_s"], setup["turns"], setup["parts"])
    dtype = chosen_dtype(setup["dtype"], accel)
    free, share = accel.memory_info(), setup["fill"]
    if accel.is_cpu or free is None or accel.integrated:
        fill_bytes = host.memory().usable * (share or DEFAULT_FILL_CPU)
    else:
        fill_bytes = free[0] * (share or DEFAULT_FILL)
    setup["step"] = "filling memory"
    with precision.precision("tf32" if dtype == "tf32" else "ieee"):
        work = StressWork(accel, dtype, int(fill_bytes), setup["seed"])
        state = State(plan, work, watch, say)
        setup["step"] = "the first product against float64"
        state.check()
        # Devices with the same values are of one model, because libraries choose their kernels by these properties.
        parts = [accel.name, ".".join(map(str, accel.compute_capability or ())), accel.multiprocessors]
        ready = {
            "model": " · ".join(str(part) for part in parts if part),
            "dtype": dtype,
            "side": work.side,
            "filled_bytes": work.filled_bytes,
            "reproducible": work.reproducible,
            "unknown": {"telemetry": watch.reason} if watch.reason else {},
        }
        say({"ready": ready})
        go()
        state.run(setup)
        state.check()
    say({**state.totals(), "end": True})


def chosen_dtype(asked: Dtype | None, accel: Accel) -> Dtype:
    """Return the requested dtype, by default the fastest usual one. Raises CannotLook if the device lacks it."""
    from gpucheck.bench import dtypes

    is_native = not accel.is_cpu and dtypes.support("bfloat16", accel).kind == "native"
    dtype = asked or ("bfloat16" if is_native else "float32")
    support = dtypes.support(dtype, accel)
    if support.kind == "none":
        raise CannotLook(f"{accel.id} has no {dtype}", support.reason, "use another --dtype", finding="stress.skipped")
    return dtype


@dataclass(slots=True)
class _Point:
    kind: str
    began_s: float
    rates: list[float] = field(default_factory=list)
    unit: str = ""
    samples: list[Sample] = field(default_factory=list)


class State:
    """The steps of a run and their reports to the parent."""

    def __init__(
        self, plan: StressPlan, work: StressWork, watch: Watch, say: Send, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.plan, self.work, self.watch, self.say, self.clock = plan, work, watch, say, clock
        self.steps = self.wrong_steps = 0
        # The number of reported wrong results, by whether rounding explains the error.
        self._reported_wrong: collections.Counter[bool] = collections.Counter()
        self._began_s = self._reported_s = 0.0
        # The readings of this turn. Power is a mean over the last seconds.
        self._recent: collections.deque[Sample] = collections.deque(maxlen=400)

    def run(self, setup: dict[str, Any]) -> None:
        """Run turns until the time is over, and at least one turn of each kind."""
        self._began_s = self.clock()
        self.watch.take()
        for turn in range(self.plan.turns):
            if turn < len(self.plan.kinds) or self.clock() - self._began_s < self.plan.duration_s:
                self._turn(turn * self.plan.parts, setup)

    def _turn(self, first: int, setup: dict[str, Any]) -> None:
        """Run steps until the turn that begins at point `first` ends, and at least one step."""
        kind = setup["step"] = self.plan.kind_of(first)
        self.work.begin(kind)
        # Earlier energy readings belong to another kind of work.
        self._recent.clear()
        point, number = _Point(kind, self.clock()), first
        while number < first + self.plan.parts:
            self._step(point)
            if (now := self.plan.point_at(self.clock() - self._began_s)) > number:
                self._close(point)
                point, number = _Point(kind, self.clock()), now

    def _step(self, point: _Point) -> None:
        """Run one step, and report the progress twice a second."""
        step = self.work.step(point.kind)
        self.steps += 1
        if step.seconds >= LEAST_HOST_WINDOW_S:
            point.rates.append(step.amount / step.seconds)
        point.unit = step.unit
        self._report_wrong(step.wrong)
        now = self.clock()
        if now - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now
            self._take(point)
            self.say({"step": point.kind, **self.totals()})

    def check(self) -> None:
        """Compare the first product with float64, and report a wrong result."""
        self.say({"busy": BUSY_S})
        self._report_wrong(self.work.check())

    def totals(self) -> dict[str, Any]:
        return {
            "totals": {
                "steps": self.steps,
                "wrong_steps": self.wrong_steps,
                "checks": self.work.checks,
                "worst_of_bound": self.work.worst_of_bound,
                "checksums": self.work.checksums,
                "memory_tested_bytes": self.work.tested_bytes if "memory" in self.plan.kinds else None,
            }
        }

    def _report_wrong(self, wrong: Sequence[StressWrong]) -> None:
        if not wrong:
            return
        self.wrong_steps += 1
        for result in wrong:
            # Rounding errors have a separate limit, because on some devices they occur in every step.
            is_rounding = result.worst_of_bound is not None and result.worst_of_bound <= 1
            if self._reported_wrong[is_rounding] < MOST_WRONG:
                self._reported_wrong[is_rounding] += 1
                self.say({"wrong": to_json(result)})
        self.say(self.totals())

    def _take(self, point: _Point) -> None:
        samples = [sample for sample in self.watch.take() if sample["at_s"] >= point.began_s]
        point.samples += samples
        self._recent.extend(samples)

    def _close(self, point: _Point) -> None:
        """Report a point of the curve, if any step was timed."""
        if not point.rates:
            return
        self._take(point)
        energies = [row for row in self._recent if row.get("energy_j") is not None]
        early = [at for at, row in enumerate(energies) if energies[-1]["at_s"] - row["at_s"] >= telemetry.ENERGY_SPAN_S]
        clocks, temperatures = (
            [float(sample[name]) for sample in point.samples if sample.get(name) is not None]
            for name in ("sm_clock_hz", "temperature_celsius")
        )
        entry = StressPoint(
            at_s=point.began_s - self._began_s,
            kind=point.kind,
            steps=len(point.rates),
            rate=_spread(point.rates),
            unit=point.unit,
            sm_clock_hz=_spread(clocks) if clocks else None,
            temperature_celsius=_spread(temperatures) if temperatures else None,
            power_w=telemetry.power_w(energies[early[-1] :]) if early else None,
            held=tuple(name for name in telemetry.clock_reasons(point.samples) if name != "gpu_idle"),
        )
        self.say({"point": to_json(entry), **self.totals()})


def _spread(values: Sequence[float]) -> StressSpread:
    return StressSpread(min(values), statistics.median(values), max(values))
