"""Launchers by their environments, and which rank of a node works."""

from __future__ import annotations

import pytest

from gpucheck.errors import UsageError
from gpucheck.machine import launcher
from gpucheck.machine.launcher import Launch, Rendezvous

SRUN = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "9", "SLURM_STEP_ID": "0", "SLURM_NNODES": "4", "SLURM_LOCALID": "1",
        "SLURMD_NODENAME": "node003"}  # fmt: skip
TORCHRUN = {"TORCHELASTIC_RUN_ID": "job", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "3", "TORCHELASTIC_RESTART_COUNT": "1"}


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        ({}, Launch("none")),
        (SRUN, Launch("srun", "77", 0, 4, "node003", True, 1)),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2"}, Launch("srun", "77", 0, 2, "node003", True, 1)),
        ({"SLURM_JOB_ID": "77", "SLURMD_NODENAME": "n1", "SLURM_RESTART_COUNT": "2"},
         Launch("slurm prolog", "77", 2, None, "n1")),
        (TORCHRUN, Launch("torchrun", "job", 1, 2, None, True, 3)),
        ({**SRUN, **TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, Launch("torchrun", "77", 1, 2, None, True, 3)),
        ({"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
          "PMIX_NAMESPACE": "prte-1@1"}, Launch("mpirun", "prte-1@1", 0, 2, None, True, 0)),
        ({"PMI_SIZE": "3", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1", "PBS_JOBID": "5.pbs"},
         Launch("mpirun", "5.pbs", 0, None, None, True, 1)),
        ({"JOB_COMPLETION_INDEX": "4", "JOBSET_NAME": "check", "JOBSET_RESTART_ATTEMPT": "1", "NODE_NAME": "gke-1"},
         Launch("kubernetes", "check", 1, None, "gke-1")),
        ({"JOB_COMPLETION_INDEX": "0"}, Launch("kubernetes")),
        ({**SRUN, "SLURM_NNODES": "x", "SLURM_LOCALID": "-1"},
         Launch("srun", "77", 0, None, "node003", True, None)),
    ],
)  # fmt: skip
def test_launchers(environment: dict[str, str], launch: Launch) -> None:
    assert launcher.detect(environment) == launch


def test_the_first_local_rank_works() -> None:
    ranks = [Launch("srun", "1", 0, 1, None, True, rank) for rank in (0, 1)]
    assert [launcher.works(launch) for launch in (*ranks, Launch("none"))] == [True, False, True]
    with pytest.raises(UsageError, match="mpirun does not say which of its node's ranks this is"):
        launcher.works(Launch("mpirun", several=True))


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
            Rendezvous(1, 4, 1, "n0", 4711, "2", is_kept=True),
        ),
        ({**SLURM, "SLURM_STEP_NODELIST": "gpu[007-009,012]"}, Rendezvous(3, 16, 1, "gpu007", 29500)),
        ({**SLURM, "SLURM_JOB_NODELIST": "a-1,b[2-3]"}, Rendezvous(3, 16, 1, "a-1", 29500)),
        ({**SLURM, "SLURM_STEP_NODELIST": "r1n[3]-ib,x", "MASTER_PORT": "1"}, Rendezvous(3, 16, 1, "r1n3-ib", 1)),
        ({**SLURM, "MASTER_ADDR": "head", "SLURM_STEP_NODELIST": "x"}, Rendezvous(3, 16, 1, "head", 29500)),
        ({**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, Rendezvous(1, 2, 0, "127.0.0.1", 29500)),
        (
            {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MASTER_ADDR": "m"},
            Rendezvous(5, 8, 1, "m", 29500),
        ),
        # One process, an allocation without a step, and none of it.
        ({**SLURM, "SLURM_NTASKS": "1"}, None),
        ({name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}, None),
        ({}, None),
    ],
)
def test_the_place_among_a_launchers_processes(environment: dict[str, str], place: Rendezvous | None) -> None:
    assert launcher.rendezvous(environment) == place


@pytest.mark.parametrize("more", [{}, {"SLURM_STEP_NODELIST": "[0-3]"}])
def test_ranks_that_cannot_know_where_they_meet_are_wrong_usage(more: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="rank 1 of 2 does not know the host of rank 0"):
        launcher.rendezvous({**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", **more})
