"""The known entries: the pages of findings, from the ids that each package declares, and every text: those of the
conditions of `gpucheck doctor`, which have pages of their own, and those for what it cannot see."""

from __future__ import annotations

from gpucheck.bench import ids as bench
from gpucheck.config import THRESHOLDS, Threshold
from gpucheck.doctor.catalogue import CONDITIONS
from gpucheck.doctor.condition import Condition
from gpucheck.explain import (
    texts_cuda,
    texts_install,
    texts_libraries,
    texts_memory,
    texts_packages,
    texts_start,
)
from gpucheck.explain.text import Text
from gpucheck.fleet import ids as fleet
from gpucheck.program import judge as program
from gpucheck.program.lint.options import RULES
from gpucheck.report.finding import Id, of
from gpucheck.smoke.options import CHECKS
from gpucheck.stress import judge as stress

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
TEXTS: tuple[Text, ...] = (
    *texts_start.TEXTS,
    *texts_memory.TEXTS,
    *texts_cuda.TEXTS,
    *texts_libraries.TEXTS,
    *texts_packages.TEXTS,
    *texts_install.TEXTS,
)


def of_condition(condition: Condition) -> Text:
    """A condition as what its own error texts point to: a text alone proves none, so `gpucheck doctor` is to look."""
    return Text(
        id=condition.id,
        title=condition.title,
        patterns=(),
        meaning=condition.meaning,
        then=f"gpucheck doctor makes sure; where it is so: {condition.fix}" if condition.fix else "gpucheck doctor",
        certainty="hint",
        conditions=(condition.id,),
        # Conditions are written for a machine that has a GPU: elsewhere their texts may be any program's.
        common=condition.texts,
        source=condition.source,
    )


OF_CONDITIONS: tuple[Text, ...] = tuple(of_condition(one) for one in CONDITIONS if one.texts)
