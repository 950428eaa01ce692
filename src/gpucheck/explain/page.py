"""Pages of what commands find: the ids that each package declares. Doctor's conditions have their own."""

from __future__ import annotations

from gpucheck.bench import ids as bench
from gpucheck.fleet import ids as fleet
from gpucheck.program import ids as program
from gpucheck.program.lint.rules import RULES
from gpucheck.report.finding import Id, of
from gpucheck.smoke.table import CHECKS
from gpucheck.stress import judge as stress
from gpucheck.thresholds import THRESHOLDS, Threshold

# What no check asks, but an option of the command.
_SMOKE = of(
    "smoke",
    Id(
        "device.required",
        "a kind of accelerator is required",
        "`--require` requires a kind of device that torch cannot use here.",
        "gpucheck doctor",
    ),
    Id(
        "device.count",
        "a minimum number of devices is required",
        "`--min-devices` requires more devices than torch can use here.",
        "gpucheck devices; then gpucheck doctor",
    ),
)
# What breaks any command off.
_FAULTS = of(
    "bench, memory, smoke and find-batch-size",
    Id(
        "device.error",
        "the device works",
        "The device, its driver or one of its libraries failed during the work: a known device error, a small kernel "
        "that fails in a fresh process too, or no answer. Earlier measurements are kept and judged, but they do not "
        "meet a threshold.",
        "follow the fix in the finding; else gpucheck smoke; sudo dmesg | grep -i xid",
    ),
    Id(
        "device.memory",
        "there was enough memory to work",
        "Memory ran out on the device or the host during the work. Usually another process took it.",
        "gpucheck memory shows which processes use it; run again when more is free",
    ),
)
_BUG = of(
    "devices, and every other command",
    Id(
        "gpucheck.error",
        "gpucheck itself works",
        "A bug in gpucheck ended the command. The results so far are in the report.",
        "report it with the traceback at the project's issue tracker",
    ),
)
_JUDGE = of(
    "judge",
    Id(
        "judge.incomplete",
        "every run came to its end",
        "The document comes from an interrupted run. Results that it did not measure are unknown.",
        "measure it again",
    ),
)


def _of_threshold(one: Threshold) -> Id:
    option = f"{one.option} or " if one.option else ""
    usual = f" Without it: {one.usual}." if one.usual else ""
    return Id(
        one.id,
        f"your threshold, in {one.kind}",
        f"{one.direction} so much, of {one.judges}.{usual}",
        f"set it with {option}[thresholds] in gpucheck.toml",
        command=one.command,
    )


_LINT = "gpucheck lint PATH names the lines; docs/lint.md shows each rule wrong and right"


def _ids() -> tuple[Id, ...]:
    """Every id. What a row says stands before what its threshold asks: both are of one id."""
    return (
        *(_of_threshold(one) for one in THRESHOLDS),
        *(Id(one.id, one.title, one.meaning, one.then, command="smoke") for one in CHECKS),
        *(*_SMOKE, *_FAULTS, *_BUG, *_JUDGE),
        *(*bench.IDS, *stress.IDS, *fleet.IDS, *program.IDS),
        *(Id(rule.id, rule.title, rule.meaning, _LINT, command="lint") for rule in RULES),
    )


PAGES: dict[str, Id] = {one.id: one for one in _ids()}
