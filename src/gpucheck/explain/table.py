"""Every text that is known: those of the conditions of `gpucheck doctor`, and those for what it cannot see."""

from __future__ import annotations

from gpucheck.doctor.catalogue import CONDITIONS
from gpucheck.doctor.condition import Condition
from gpucheck.explain import (
    texts_cuda,
    texts_data,
    texts_install,
    texts_libraries,
    texts_log,
    texts_memory,
    texts_packages,
    texts_start,
    texts_tensors,
)
from gpucheck.explain.text import Text

TEXTS: tuple[Text, ...] = (
    *texts_start.TEXTS,
    *texts_memory.TEXTS,
    *texts_cuda.TEXTS,
    *texts_libraries.TEXTS,
    *texts_tensors.TEXTS,
    *texts_data.TEXTS,
    *texts_packages.TEXTS,
    *texts_install.TEXTS,
    *texts_log.TEXTS,
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
