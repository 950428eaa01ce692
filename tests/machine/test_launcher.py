"""Launchers by their environments, and which rank of a node works."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from gpucheck.errors import UsageError
from gpucheck.machine import launcher
from gpucheck.machine.launcher import Launch, Place

SRUN = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "9", "SLURM_STEP_ID": "0", "SLURM_NNODES": "4", "SLURM_LOCALID": "1",
        "SLURMD_NODENAME": "node003"}  # fmt: skip
TORCHRUN = {"TORCHELASTIC_RUN_ID": "job", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "3", "TORCHELASTIC_RESTART_COUNT": "1"}


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        ({}, Launch("none")),
        (SRUN, Launch("srun", "77", 0, 4, "node003", True, 1, "77.0")),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2"}, Launch("srun", "77", 0, 2, "node003", True, 1, "77.0")),
        ({"SLURM_JOB_ID": "77", "SLURMD_NODENAME": "n1", "SLURM_RESTART_COUNT": "2"},
         Launch("slurm prolog", "77", 2, None, "n1")),
        (TORCHRUN, Launch("torchrun", "job", 1, 2, None, True, 3, "job.55")),
        ({**SRUN, **TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, Launch("torchrun", "77", 1, 2, None, True, 3, "none.55")),
        ({"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
          "PMIX_NAMESPACE": "prte-1@1"}, Launch("mpirun", "prte-1@1", 0, 2, None, True, 0, "prte-1@1")),
        ({"PMI_SIZE": "3", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1", "PBS_JOBID": "5.pbs"},
         Launch("mpirun", "5.pbs", 0, None, None, True, 1, "5.pbs")),
        ({"JOB_COMPLETION_INDEX": "4", "JOBSET_NAME": "check", "JOBSET_RESTART_ATTEMPT": "1", "NODE_NAME": "gke-1"},
         Launch("kubernetes", "check", 1, None, "gke-1")),
        ({"JOB_COMPLETION_INDEX": "0"}, Launch("kubernetes")),
        ({**SRUN, "SLURM_NNODES": "x", "SLURM_LOCALID": "-1"},
         Launch("srun", "77", 0, None, "node003", True, None, "77.0")),
    ],
)  # fmt: skip
def test_launchers(environment: dict[str, str], launch: Launch) -> None:
    assert launcher.detect(environment, parent=55) == launch


@pytest.mark.skipif(os.name != "posix", reason="a POSIX lock")
def test_one_rank_of_a_start_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    launch = Launch("torchrun", "r", 0, 1, None, True, 0, "r.1")
    with launcher.elected(launch, "n1") as first, launcher.elected(launch, "n1") as second:
        assert (first, second) == (True, False)
        with launcher.elected(launch, "n2") as elsewhere, launcher.elected(Launch("none"), "n1") as alone:
            assert (elsewhere, alone) == (True, True)
    with launcher.elected(launch, "n1") as late:
        assert not late  # another rank of this start has done it
    clock = time.time() + 2 * launcher.SAME_START_S
    monkeypatch.setattr(time, "time", lambda: clock)
    with launcher.elected(launch, "n1") as next_start:
        assert next_start


def test_where_the_lock_is_somebody_elses_the_first_local_rank_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    ranks = [Launch("srun", "1", 0, 1, None, True, rank, "1.0") for rank in (0, 1)]
    works = []
    for rank in ranks:
        with launcher.elected(rank, "n") as one:
            works.append(one)
    assert works == [True, False]


@pytest.mark.skipif(os.name != "posix", reason="POSIX owners")
def test_a_lock_that_another_user_has_made_keeps_nobody_from_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # the file's owner stays whoever runs the test
    first, second = (Launch("srun", "1", 0, 1, None, True, rank, "1.0") for rank in (0, 1))
    with launcher.elected(first, "n") as one, launcher.elected(second, "n") as other:
        assert (one, other) == (True, False)


SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
OMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        (
            {
                "RANK": "1",
                "WORLD_SIZE": "4",
                "LOCAL_RANK": "1",
                "MASTER_ADDR": "n0",
                "MASTER_PORT": "4711",
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "2",
            },
            Place(1, 4, 1, "n0", 4711, "2", is_kept=True),
        ),
        ({**SLURM, "SLURM_STEP_NODELIST": "gpu[007-009,012]"}, Place(3, 16, 1, "gpu007", 29500)),
        ({**SLURM, "SLURM_JOB_NODELIST": "a-1,b[2-3]"}, Place(3, 16, 1, "a-1", 29500)),
        ({**SLURM, "SLURM_STEP_NODELIST": "r1n[3]-ib,x", "MASTER_PORT": "1"}, Place(3, 16, 1, "r1n3-ib", 1)),
        ({**SLURM, "MASTER_ADDR": "head", "SLURM_STEP_NODELIST": "x"}, Place(3, 16, 1, "head", 29500)),
        ({**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, Place(1, 2, 0, "127.0.0.1", 29500)),
        ({**OMPI, "LSB_MCPU_HOSTS": "h1 4 h2 4"}, Place(1, 2, 0, "h1", 29500)),
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MASTER_ADDR": "m"}, Place(5, 8, 1, "m", 29500)),
        # One process, an allocation without a step, and none of it.
        ({**SLURM, "SLURM_NTASKS": "1"}, None),
        ({name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}, None),
        ({}, None),
    ],
)
def test_the_place_among_a_launchers_processes(environment: dict[str, str], place: Place | None) -> None:
    assert launcher.place(environment) == place


@pytest.mark.parametrize("more", [{}, {"SLURM_STEP_NODELIST": "[0-3]"}, {"PBS_NODEFILE": "/nowhere"}])
def test_ranks_that_cannot_know_where_they_meet_are_wrong_usage(more: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="rank 1 of 2 does not know the host of rank 0"):
        launcher.place({**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", **more})
