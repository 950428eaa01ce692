"""Detect the launcher that started this process on several nodes, and this process's rank, from the environment."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gpucheck.errors import UsageError

# The variables that describe other ranks. Children do not get them: a check of one node must not wait for others.
PREFIXES = ("TORCHELASTIC_", "MASTER_", "OMPI_", "PMIX_", "PMI_", "SLURM_STEP", "SLURM_PROC", "SLURM_TASK")
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK")
# Errors of gloo, NCCL and torch's store after another rank has ended.
LOST_PEER = re.compile(
    r"connection (closed by peer|reset|was likely closed)|broken pipe|remote process exited|remote error", re.IGNORECASE
)


class Launch(NamedTuple):
    """The launcher of this process and its job. `several`: a node may have more than one rank. None is unknown."""

    launcher: str
    run: str | None = None
    attempt: int = 0
    nodes: int | None = None
    host: str | None = None
    several: bool = False
    local_rank: int | None = None


def detect(environment: Mapping[str, str]) -> Launch:
    """Return the launcher. torchrun and mpirun are checked first, because they often run inside srun."""
    number = functools.partial(_number, environment)
    job = _first(environment, "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "JOB_ID")
    host, attempt = _first(environment, "SLURMD_NODENAME"), number("SLURM_RESTART_COUNT") or 0
    if "TORCHELASTIC_RUN_ID" in environment:
        run, attempt = _first(environment, "TORCHELASTIC_RUN_ID"), number("TORCHELASTIC_RESTART_COUNT") or 0
        # Without --rdzv-id, torchrun names every run "none".
        run = job if run in (None, "none") else run
        return Launch("torchrun", run, attempt, number("GROUP_WORLD_SIZE"), None, True, number("LOCAL_RANK"))
    if "OMPI_COMM_WORLD_SIZE" in environment or "PMI_SIZE" in environment:
        size = number("OMPI_COMM_WORLD_SIZE") or number("PMI_SIZE")
        local = number("OMPI_COMM_WORLD_LOCAL_SIZE") or number("MPI_LOCALNRANKS")
        rank = number("OMPI_COMM_WORLD_LOCAL_RANK")
        rank = rank if rank is not None else number("MPI_LOCALRANKID")
        # Ranks are usually spread evenly over the nodes. With a remainder, the number of nodes is unknown.
        nodes = size // local if size and local and size % local == 0 else None
        run = job or _first(environment, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
        return Launch("mpirun", run, 0, nodes, None, True, rank)
    if "SLURM_PROCID" in environment and "SLURM_JOB_ID" in environment:
        nodes = number("SLURM_STEP_NUM_NODES") or number("SLURM_NNODES")
        return Launch("srun", job, attempt, nodes, host, True, number("SLURM_LOCALID"))
    if "SLURM_JOB_ID" in environment:
        return Launch("slurm prolog", job, attempt, None, host)
    if "JOB_COMPLETION_INDEX" in environment:
        # Kubernetes sets this variable in the pods of an indexed Job. The other variables come from the downward API.
        run, attempt = _first(environment, "JOBSET_NAME", "JOB_NAME"), number("JOBSET_RESTART_ATTEMPT") or 0
        return Launch("kubernetes", run, attempt, number("JOB_COMPLETIONS"), _first(environment, "NODE_NAME"))
    return Launch("none")


class Rendezvous(NamedTuple):
    """This process's rank, the number of ranks, and the address of rank 0."""

    rank: int
    world: int
    local_rank: int
    host: str
    port: int
    attempt: str = "0"
    is_kept: bool = False  # the launcher already runs torch's store at this address


# The variables of the rank, the number of ranks and the local rank, set by torchrun, Open MPI, MPICH and Slurm.
_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


def rendezvous(environment: Mapping[str, str]) -> Rendezvous | None:
    """Return the rank and the address of rank 0; None for a single rank. Raises UsageError without an address."""
    for names in _RANK_VARIABLES:
        rank, world, local = (_number(environment, name) for name in names)
        if rank is None or world is None or (names[0] == "SLURM_PROCID" and "SLURM_STEP_ID" not in environment):
            continue
        if world < 2:
            return None
        if (host := environment.get("MASTER_ADDR") or _first_host(environment)) is None:
            why, fix = "MASTER_ADDR is not set, and the launcher lists no nodes", "set MASTER_ADDR for every rank"
            raise UsageError(f"rank {rank} of {world} does not know the host of rank 0", why, fix)
        return Rendezvous(
            rank,
            world,
            rank if local is None else local,
            host,
            _number(environment, "MASTER_PORT") or 29500,  # the default of torch.distributed.run
            environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
            environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    return None


def _first_host(environment: Mapping[str, str]) -> str | None:
    """Return the host of rank 0: the first in the launcher's list, or this machine if all ranks run here; else None."""
    if listed := _first(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"):
        # The first host of the list `node[03-07,12]-ib,login` is `node03-ib`.
        first = re.match(r"([\w.-]+)(?:\[(\d+)[^\]]*\]([\w.-]*))?(?:,|$)", listed)
        return None if first is None else "".join(part or "" for part in first.groups())
    world, local = (_number(environment, f"OMPI_COMM_WORLD_{name}SIZE") for name in ("", "LOCAL_"))
    return "127.0.0.1" if world is not None and world == local else None


def _first(environment: Mapping[str, str], *names: str) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


@functools.cache
def boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:64] or None
    except (OSError, UnicodeDecodeError):
        return None


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that describe other ranks."""
    return {name: value for name, value in environment.items() if name not in NAMES and not name.startswith(PREFIXES)}


def works(launch: Launch) -> bool:
    """Return whether this is the node's first rank, which does the node's work. Raises UsageError if unknown."""
    if launch.several and launch.local_rank is None:
        why = f"{launch.launcher} does not say which of its node's ranks this is"
        raise UsageError("which rank of this node works is unknown", why, "start one process on each node")
    return launch.local_rank in (0, None)
