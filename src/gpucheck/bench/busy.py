"""Were others on the CPU while times were taken on the host's clock?"""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.measure import runs
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement


def judge(finding_id: str, measurements: Sequence[Measurement]) -> list[Finding]:
    """One warning for all rows that other processes made longer; none where there is no such row."""
    busy = [one for one in measurements if "cpu-busy" in one.flags]
    if not busy:
        return []
    most = max(
        run["details"]["cores_used_by_others"] for one in busy for run in runs.each(one) if "cpu-busy" in run["flags"]
    )
    return [
        Finding(
            finding_id,
            "warn",
            f"other processes kept up to {units.significant(most, 2)} cores busy",
            f"{len(busy)} of {len(measurements)} rows are timed on the host's clock and come out too slow",
            {"rows": [one.case for one in busy], "cores_used_by_others": most},
            fix="run it again when the machine is idle",
        )
    ]
