"""Every condition, by rung. A new one is a row in the file of its rung."""

from __future__ import annotations

from gpucheck.health.doctor import conditions_cuinit
from gpucheck.health.doctor.condition import Condition

CONDITIONS: tuple[Condition, ...] = (*conditions_cuinit.CONDITIONS,)

BY_ID = {one.id: one for one in CONDITIONS}
