"""Copy the collectives in torch's flight recorder to the rank's file, in the rank's own process.

torch records each collective, and a thread of gpucheck reads the recorder before torch overwrites entries. The recorder
lacks gloo's sends and receives, which replaced methods of the process group count. The first such message starts the
timing of `Work.wait`.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gpucheck.machine import launcher, torch_private
from gpucheck.program.run import counters, hooks, memory_peaks

# The shortest and longest time between two reads of the recorder, and the share of the time that reads may take.
LEAST_S, EVERY_S, COST = 1.0, 30.0, 0.002
TICK_S = 0.5
FULL = 0.75  # the share of new entries at which the recorder is read at once
LATEST_HANG_S = 300.0  # a wait is a hang after half the smallest timeout of a group, or after this time
LINES = 256  # the last calls whose source lines are recorded
PINGS = 32
MOST_WORKS = 4096  # with more works, those that the program no longer references are dropped
# No known program uses this signal. faulthandler's handler needs no lock of Python.
STACK_SIGNAL = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None


class FlightRecorderReader:
    """The thread that reads the flight recorder, and its position in it."""

    def __init__(self, asked: dict[str, Any], dump: Callable[..., bytes], lines: memory_peaks.Lines) -> None:
        self.write, self.hang_after_s = functools.partial(counters.append, asked["path"]), asked["hang_after_s"]
        # Files that mark for all ranks that a rank waits too long, or that a rank has failed.
        folder = os.path.dirname(asked["path"])
        self.hang_mark, self.end_mark = os.path.join(folder, "hang"), os.path.join(folder, "failed")
        self.dump, self.lines = dump, lines
        sizes = map(os.environ.get, ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))
        self.entries = int(next(filter(None, sizes), 2000))
        self.pid = os.getpid()
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.last_id, self.read_at, self.read_count, self.every_s = -1, time.monotonic(), 0, LEAST_S
        self.kinds: dict[str, int] = {}
        self.groups: set[str] = set()
        self.steps: list[tuple[int, ...]] = []
        self.queued = queued_ns()
        self.status, self.since = "", time.monotonic()
        self.timeout_s, self.answered = LATEST_HANG_S * 2, set[str]()
        self.clock: ClockOffset | None = ClockOffset(self.write) if asked["hosts"] else None
        self.exchanges = Exchanges()
        self.blocked_ns = self.p2p_ns = 0
        self.thread = threading.Thread(target=self.run, name="gpucheck", daemon=True)

    def step(self, row: tuple[int, ...]) -> None:
        """Record the end of a step. `row` is the step's row of the counters."""
        queued, blocked, p2p = queued_ns(), self.exchanges.blocked_ns, self.exchanges.p2p_ns
        waits = queued - self.queued, blocked - self.blocked_ns, p2p - self.p2p_ns
        self.steps.append((time.time_ns(), *row[1:7], *waits))
        self.queued, self.blocked_ns, self.p2p_ns = queued, blocked, p2p

    def run(self) -> None:
        while not self.stop.wait(TICK_S):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 (an error in gpucheck ends the recording, never the program)
                self.write({"say": "failed", "why": repr(error)[:500]})
                return

    def look(self) -> None:
        if "torch.distributed.distributed_c10d" not in sys.modules:
            return
        status = pickle.loads(self.dump(includeCollectives=False, includeStackTraces=False, onlyActive=False))
        if not (groups := status.get("pg_status", {})):
            return
        now = time.monotonic()
        self.say_groups()
        if self.clock is not None:
            try:
                self.clock.tick()
            except (OSError, RuntimeError) as error:
                self.clock = None
                self.write({"say": "failed", "why": f"the clocks of the hosts were not compared: {error}"[:500]})
        if (latest := repr(groups)) != self.status:
            self.status, self.since = latest, now
        enqueued = [int(group["last_enqueued_collective"]) for group in groups.values()]
        new = sum(enqueued) - self.read_count
        # A pipeline may have steps and no collective.
        is_due = now - self.read_at >= self.every_s and (new or self.steps)
        if is_due or new >= FULL * self.entries:
            self.read_count += new
            self.read(stacks=False)
            self.read_at = time.monotonic()
            self.every_s = min(max((self.read_at - now) / COST, LEAST_S), EVERY_S)
        after_s = self.hang_after_s or min(self.timeout_s / 2, LATEST_HANG_S)
        completed = (int(group["last_completed_collective"]) for group in groups.values())
        is_waiting = any(last > done for last, done in zip(enqueued, completed, strict=True))
        if is_waiting and now - self.since >= after_s and not os.path.exists(self.hang_mark):
            with contextlib.suppress(OSError), open(self.hang_mark, "x", encoding="ascii") as file:
                file.write(f"{time.time_ns()} {now - self.since:.1f}")
        if marks := {mark for mark in (self.hang_mark, self.end_mark) if os.path.exists(mark)} - self.answered:
            self.answered |= marks
            self.read(stacks=True)

    def read(self, *, stacks: bool) -> None:
        with self.lock:
            record = pickle.loads(self.dump(includeCollectives=True, includeStackTraces=stacks, onlyActive=False))
            entries = record.get("entries", [])
            new = [entry for entry in entries if entry["record_id"] > self.last_id]
            made = [entry for entry in new if not entry["is_p2p"]]
            rows = [(self.kind(entry), entry["collective_seq_id"], entry["time_created_ns"]) for entry in made]
            lost = max(entries[0]["record_id"] - self.last_id - 1, 0) if entries else 0
            if entries:
                self.last_id = max(self.last_id, entries[-1]["record_id"])
                self.timeout_s = min(entry["timeout_ms"] for entry in entries) / 1e3
            if rows or lost:
                self.write({"say": "calls", "lost": lost, "p2p": len(new) - len(rows), "rows": rows})
            steps, self.steps = self.steps, []
            if steps:
                self.write({"say": "steps", "rows": steps})
            self.write({"say": "p2p", **self.exchanges.totals()})
            if stacks:
                pending = [(self.kind(entry), entry["collective_seq_id"]) for entry in entries if not entry["retired"]]
                self.write({"say": "pending", "hang": os.path.exists(self.hang_mark), "rows": pending})
                lines = [line for entry in entries[-LINES:] if (line := self.line(entry)) is not None]
                self.write({"say": "lines", "rows": lines})

    def kind(self, entry: dict[str, Any]) -> int:
        """Return the number of this operation with these shapes. A new operation is written to the file."""
        operation = {"group": str(entry["process_group"][0]), "name": entry["profiling_name"]}
        operation |= {"sizes": entry["input_sizes"], "dtypes": entry["input_dtypes"]}
        if (key := json.dumps(operation)) not in self.kinds:
            self.kinds[key] = len(self.kinds)
            self.write({"say": "kind", "kind": self.kinds[key], **operation})
        return self.kinds[key]

    def line(self, entry: dict[str, Any]) -> list[Any] | None:
        """Return a call's kind and number, the user's file and line, and whether a backward pass made the call."""
        frames = entry.get("frames", [])
        back = any(frame["name"] == "_engine_run_backward" for frame in frames)
        for frame in frames:
            if self.lines.distance(frame["filename"]) == 0:
                path = self.lines.path(frame["filename"])
                return [self.kind(entry), entry["collective_seq_id"], path, frame["line"], back]
        return None

    def say_groups(self) -> None:
        """Write the ranks of each group. The recorder does not have the ranks of gloo's groups."""
        world = torch_private.need("torch.distributed.distributed_c10d._world")
        for group, ranks in list(world.pg_group_ranks.items()):
            line = {"say": "group", "name": str(world.pg_names.get(group)), "ranks": sorted(ranks)}
            if (key := json.dumps(line)) not in self.groups:
                self.groups.add(key)
                self.write(line)

    def end(self) -> None:
        if os.getpid() != self.pid:
            return
        self.stop.set()
        self.thread.join(TICK_S * 2)
        if "torch.distributed.distributed_c10d" in sys.modules:
            self.read(stacks=True)


def queued_ns() -> int:
    """Return the time that the main thread has waited for a processor; 0 on other systems than Linux."""
    try:
        with open("/proc/self/schedstat", "rb", buffering=0) as file:
            return int(file.read(100).split()[1])
    except (OSError, IndexError, ValueError):
        return 0


class Exchanges:
    """Counts this rank's sends and receives by peer, and the time that the main thread waits for other ranks."""

    def __init__(self) -> None:
        # The peer's rank in the job and the count, by group, rank in the group (-1 for any), and whether it is sent to.
        self.counts: dict[tuple[str, int, bool], list[int]] = {}
        self.works: dict[int, tuple[weakref.ref[Any], bool]] = {}  # running works by id, with whether each is a send
        # Nanoseconds that the main thread waited since the first send or receive: in all, and for sends and receives.
        self.blocked_ns = self.p2p_ns = 0
        self.hidden = 0  # works without a timed wait: the program waits in another thread, polls, or never waits
        self.waited = 0  # collectives that the main thread waited for in Python
        self.is_timed = False

    def install(self, native: Any) -> None:
        for name in ("send", "recv", "recv_anysource"):
            if (original := getattr(native.ProcessGroup, name, None)) is not None:
                note = functools.partial(self._exchanged, name, native.Work)
                setattr(native.ProcessGroup, name, hooks.measured(note, original))

    def _exchanged(self, name: str, work_class: Any, work: Any, args: Any, kwargs: Any, began: int, frame: Any) -> None:
        if not self.is_timed:  # a job without sends and receives pays nothing
            self.is_timed = True
            for method in ("is_completed", "get_future"):
                setattr(work_class, method, hooks.measured(self._asked, getattr(work_class, method)))
            work_class.wait = hooks.measured(self._waited, work_class.wait)
        group, sends = args[0], name == "send"
        peer = args[2] if name != "recv_anysource" and len(args) > 2 else -1
        if (row := self.counts.get((group.group_name, peer, sends))) is None:
            row = self.counts[group.group_name, peer, sends] = [_rank_in_job(group, peer), 0]
        row[1] += 1
        if work is None:  # several messages share a work, which another call returns
            self.hidden += not sends
        else:
            self.works[id(work)] = weakref.ref(work), sends
            if len(self.works) > MOST_WORKS:
                self._let_go()

    def _waited(self, result: Any, args: Any, kwargs: Any, began: int, frame: Any) -> None:
        known = self.works.pop(id(args[0]), None)
        is_p2p = known is not None and known[0]() is args[0]
        if threading.get_ident() != hooks._main_thread:
            self.hidden += is_p2p
            return
        spent = hooks.now() - began
        self.blocked_ns += spent
        if is_p2p:
            self.p2p_ns += spent
        else:
            self.waited += 1

    def _asked(self, result: Any, args: Any, kwargs: Any, began: int, frame: Any) -> None:
        self.hidden += id(args[0]) in self.works

    def _let_go(self) -> None:
        for key, (work, sends) in list(self.works.items()):
            if work() is None and self.works.pop(key, None) is not None:
                self.hidden += not sends

    def totals(self) -> dict[str, Any]:
        self._let_go()
        peers: dict[int, list[int]] = {}
        for (_, _, sends), (peer, count) in list(self.counts.items()):
            peers.setdefault(peer, [0, 0])[not sends] += count
        return {"peers": [[peer, *row] for peer, row in peers.items()], "hidden": self.hidden, "waited": self.waited}


def _rank_in_job(group: Any, peer: int) -> int:
    """Return the rank in the job of a group's member, or `peer` if torch.distributed does not know the member."""
    members = torch_private.need("torch.distributed.distributed_c10d._world").pg_group_ranks.get(group, {})
    return next((rank for rank, place in members.items() if place == peer), peer)


class ClockOffset:
    """Measures the offset of this host's clock from rank 0's clock. The job's store has rank 0's address."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self.write = write
        self.boot = launcher.boot_id() or socket.gethostname()  # ranks with the same clock have the same value
        self.store: Any = None
        self.asked_at = -EVERY_S

    def tick(self) -> None:
        """Join the clocks' store at the first call. Rank 0 then answers the requests of the other ranks."""
        from torch.distributed import distributed_c10d

        if not torch.distributed.is_initialized():
            return
        is_first = torch.distributed.get_rank() == 0
        if self.store is None:
            store = torch_private.need("torch.distributed.distributed_c10d._get_default_store")()
            if not hasattr(store, "clone"):
                return
            self.store = distributed_c10d.PrefixStore("gpucheck", store.clone())
            if is_first:
                server = socket.socket()
                server.bind(("", 0))
                server.listen(64)
                host = os.environ.get("MASTER_ADDR", socket.gethostname())
                threading.Thread(target=serve, args=(server,), name="gpucheck clock", daemon=True).start()
                self.store.set("clock", f"{self.boot} {host} {server.getsockname()[1]}")
                self.write({"say": "clock", "at_ns": time.time_ns(), "offset_ns": 0, "error_ns": 0})
        if not is_first and time.monotonic() - self.asked_at >= EVERY_S and self.store.check(["clock"]):
            self.asked_at = time.monotonic()
            boot, host, port = self.store.get("clock").decode().split(" ")
            offset = (0, 0) if boot == self.boot else offset_ns(host, int(port))
            self.write({"say": "clock", "at_ns": time.time_ns(), "offset_ns": offset[0], "error_ns": offset[1]})


def serve(server: socket.socket) -> None:
    """Answer requests with this host's time, one rank after another."""
    while True:
        try:
            client, _ = server.accept()
        except OSError:  # closed
            return
        with client, contextlib.suppress(OSError):
            client.settimeout(5.0)
            while client.recv(1):
                client.sendall(time.time_ns().to_bytes(8, "little"))


def offset_ns(host: str, port: int) -> tuple[int, int]:
    """Return the correction of this host's time in ns, and the error, which is half the shortest round trip."""
    best = 0, sys.maxsize
    with socket.create_connection((host, port), timeout=5.0) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            began = time.time_ns()
            server.sendall(b"?")
            answer = server.recv(8, socket.MSG_WAITALL)
            ended = time.time_ns()
            if len(answer) < 8:  # this process was stopped for longer than rank 0's timeout
                raise ConnectionError("rank 0 closed the connection")
            theirs = int.from_bytes(answer, "little")
            if ended - began < 2 * best[1]:
                best = theirs - (began + ended) // 2, (ended - began + 1) // 2
    return best


def begin(asked: dict[str, Any]) -> None:
    if (dump := torch_private.find("torch._C._distributed_c10d._dump_fr_trace")) is None:
        return counters.append(
            asked["path"], {"say": "failed", "why": "this torch has no flight recorder that can be read"}
        )
    recorder = FlightRecorderReader(asked, dump, hooks.lines)
    recorder.exchanges.install(torch.distributed)
    hooks._steps.listener = recorder.step
    if STACK_SIGNAL is not None:
        import fcntl

        path = os.path.splitext(asked["path"])[0] + ".stack"
        handle = low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # A high number does not collide with the program's own descriptors. The limit may be lower.
        with contextlib.suppress(OSError):
            handle = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 500)
            os.close(low)
        faulthandler.register(STACK_SIGNAL, handle, all_threads=True, chain=False)
        if not faulthandler.is_enabled():  # an abort inside a backend leaves no other trace
            faulthandler.enable(handle, all_threads=True)
    atexit.register(recorder.end)
    recorder.thread.start()
