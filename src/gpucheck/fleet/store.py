"""The store of torchrun: every node leaves its document there, and node 0 writes all of them into its folder.

A node sets one key and goes; nobody waits for a rendezvous. The store is torch's own, and a call into it may never
return: a child with a time limit does the talking (`main`), so that a lost network costs that time and no more.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.errors import CannotLook, UsageError
from gpucheck.fleet import documents
from gpucheck.fleet.hosts import expand
from gpucheck.machine import child, speaking, talk
from gpucheck.report.results.fleet import NodeDocument

if TYPE_CHECKING:
    from torch.distributed import TCPStore

# A key holds at most so much: the store keeps all of them in the memory of node 0's launcher.
MOST_BYTES = 64 * 2**10
# Starting Python, importing torch from a network's file system and connecting take seconds.
START_S = 30.0
# Nodes start within seconds of each other, and each has the same time for its parts.
LATE_S = 15.0
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """Where the store is, and which node of how many this is. `attempt` keeps a restart's documents apart."""

    host: str
    port: str
    rank: int
    nodes: int
    attempt: int

    def key(self, rank: int) -> str:
        """The key of a node's document."""
        return f"gpucheck/fleet/{self.attempt}/{rank}"


def place(environment: Mapping[str, str], attempt: int) -> Place:
    """The store of these variables. Raises UsageError where the launcher has none."""
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    numbers = [environment.get(name, "") for name in ("GROUP_RANK", "GROUP_WORLD_SIZE")]
    # Only the store of the launcher itself is there before any rank has made one.
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not host or not port.isdigit():
        raise UsageError("--store needs torchrun's own store", "", "start with torchrun --rdzv-backend c10d")
    if not all(one.isascii() and one.isdigit() for one in numbers):
        raise UsageError("--store needs torchrun's GROUP_RANK and GROUP_WORLD_SIZE", "", "start it with torchrun")
    return Place(host, port, int(numbers[0]), int(numbers[1]), attempt)


def exchange(at: Place, document: NodeDocument, folder: Path, left_s: float) -> str:
    """Leave the document in the store; node 0 collects the others', for `left_s` seconds and a little more.

    Returns what went wrong, empty where nothing did.
    """
    line = documents.marked(document)
    if len(line) > MOST_BYTES:
        return f"the document has {len(line)} bytes, the store takes {MOST_BYTES}: it is in this node's folder only"
    wait_s = max(left_s, 0.0) + LATE_S if at.rank == 0 else 0.0
    arguments = (at.host, at.port, str(at.rank), str(at.nodes), str(at.attempt), str(folder), f"{wait_s:.1f}")
    limit_s = START_S + wait_s
    try:
        result = child.run(child.python_argv("gpucheck.fleet.store", *arguments), limit_s, stdin=line)
    except OSError as error:
        return f"the store's child could not be started: {error.strerror or error}"
    heard = talk.heard(result, limit_s)
    said = heard.merged
    if "wrong" not in said:
        return f"the store could not be reached: {heard.ending.in_words}"
    return str(said["wrong"])


# -- the child's side --------------------------------------------------------------------------------------------------


def main() -> int:
    """Set this node's key; as node 0 write the others' documents until all are there or the time is up."""
    say = speaking.claim_stdout()
    host, port, rank, nodes, attempt, folder, wait_s = sys.argv[1:]
    at = Place(host, port, int(rank), int(nodes), int(attempt))
    mine = sys.stdin.readline()
    from datetime import timedelta

    from torch.distributed import TCPStore

    try:
        timeout = timedelta(seconds=START_S)
        store = TCPStore(at.host, int(at.port), is_master=False, wait_for_workers=False, timeout=timeout)
        store.set(at.key(at.rank), mine)
        wrong = _collected(store, at, documents.of_line(mine.encode()), Path(folder), float(wait_s))
    except (RuntimeError, CannotLook) as error:  # the store's own errors are RuntimeErrors
        wrong = str(error).partition("\n")[0]
    say({"wrong": documents.clean(wrong, 300), "end": True})
    return 0


def _collected(store: TCPStore, at: Place, own: NodeDocument, folder: Path, wait_s: float) -> str:
    """Write what the other nodes have left, as it comes. Returns what went wrong."""
    waiting = dict.fromkeys(range(at.nodes) if at.rank == 0 else ())
    waiting.pop(at.rank, None)
    hosts, wrong = {own.host}, []
    deadline = time.monotonic() + wait_s
    while waiting:
        for rank in [one for one in waiting if store.check([at.key(one)])]:
            del waiting[rank]
            try:
                _write(store.get(at.key(rank)), own, hosts, folder)
            except documents.Refused as error:
                wrong.append(f"node {rank}: {error}")
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_S if waiting else 0.0)
    if waiting:
        wrong.append(_missing(len(waiting), at.nodes, hosts, os.environ))
    return "; ".join(wrong)


def _missing(count: int, nodes: int, came: set[str], environment: Mapping[str, str]) -> str:
    """That nodes left no document: which, by Slurm's list, else which did; a rank's number names no node."""
    told = f"{count} of {nodes} nodes left no document in the store"
    if listed := environment.get("SLURM_JOB_NODELIST"):
        try:
            names = expand(listed, "SLURM_JOB_NODELIST")
        except UsageError:
            names = ()
        short = {host.partition(".")[0] for host in came}
        absent = [name for name in names if name.partition(".")[0] not in short]
        if len(absent) == count:
            return f"{told}: {', '.join(absent[:8])}{' …' if count > 8 else ''}"
    known = sorted(came)
    return f"{told}: all but {', '.join(known[:8])}{' …' if len(known) > 8 else ''}"


def _write(line: bytes, own: NodeDocument, hosts: set[str], folder: Path) -> None:
    """One node's document into the folder. Raises Refused for what is not one, and CannotLook."""
    if len(line) > MOST_BYTES:
        raise documents.Refused(f"larger than {MOST_BYTES // 1024} KiB")
    document = documents.of_line(line)
    if document.run != own.run:
        raise documents.Refused("a document of another run")
    if document.host in hosts:
        raise documents.Refused(f"a second document of {document.host}; give each node its name with --host")
    hosts.add(document.host)
    documents.write(folder, document)
