"""Pages of what commands find: the ids that each package declares. Doctor's conditions have their own."""

from __future__ import annotations

from gpucheck.bench import ids as bench
from gpucheck.fleet import ids as fleet
from gpucheck.program import ids as program
from gpucheck.program.lint.rules import RULES
from gpucheck.report.finding import Id, of
from gpucheck.smoke.options import CHECKS
from gpucheck.stress import judge as stress
from gpucheck.thresholds import THRESHOLDS, Threshold

# What no check asks, but an option of the command.
_SMOKE = of(
    "smoke",
    Id(
        "device.required",
        "an accelerator of a kind is required",
        "`--require` asks for a kind of device that torch cannot use here.",
        "gpucheck doctor",
    ),
    Id(
        "device.count",
        "at least so many devices are required",
        "`--min-devices` asks for more than torch can use here.",
        "gpucheck devices; then gpucheck doctor",
    ),
)
# What breaks any command off.
_FAULTS = of(
    "bench, memory, smoke and find-batch-size",
    Id(
        "device.error",
        "the device works",
        "The device, its driver or a library of its failed in the middle of the work: an error that is known as a "
        "device's, a small kernel that fails in a fresh process too, or no answer at all. What was measured before is "
        "kept and judged; a threshold is not met by it.",
        "follow the fix in the finding; else gpucheck smoke; sudo dmesg | grep -i xid",
    ),
    Id(
        "device.memory",
        "there was memory to work in",
        "Memory ran out on the device or the host in the middle of the work: mostly another process took it.",
        "gpucheck memory shows whose it is; run it again when there is more",
    ),
)
_BUG = of(
    "devices, and every other command",
    Id(
        "gpucheck.error",
        "gpucheck itself works",
        "An error of gpucheck's own ended the command. What was found until then is in the report.",
        "report it with the traceback at the project's issue tracker",
    ),
)
_JUDGE = of(
    "judge",
    Id(
        "judge.incomplete",
        "every run came to its end",
        "A document was written by a run that was cut off: what it did not measure is not known.",
        "measure it again",
    ),
)


def _of_threshold(one: Threshold) -> Id:
    option = f"{one.option} or " if one.option else ""
    usual = f" Without it: {one.usual}." if one.usual else ""
    return Id(
        one.id,
        f"a threshold of your own, in {one.kind}",
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
