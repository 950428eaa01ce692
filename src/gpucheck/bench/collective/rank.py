"""One rank of `bench collective`: a process that joins the others and times and verifies collectives.

It writes a line to its parent (`work.Meeting`) at each step, so that the parent knows where a rank hangs.
"""

from __future__ import annotations

import datetime
import math
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from gpucheck.bench.buffers import no_room
from gpucheck.bench.collective import COLLECTIVES, ITEM, PEER_COPY
from gpucheck.errors import CannotLook
from gpucheck.machine import accel, device_lifetime, host
from gpucheck.machine.child_stdio import Send, claim_stdout, requests
from gpucheck.measure import timing
from gpucheck.report.codec import to_json
from gpucheck.report.fault import first_line

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
# The first calls of a size open channels and register buffers.
WARM_UP = 3
# A window is long compared with a synchronization and the ranks' unequal starts (20 µs, 100 µs over a network).
WINDOW_S = 0.02
MOST_CALLS, LEAST_WINDOWS, MOST_WINDOWS = 1000, 3, 20
# Elements compared at a time. Indices and expected values take several times the memory of a slice.
SLICE = 1 << 22
# An element's value depends on its position modulo PERIOD, a prime, and on its rank's tag, so that data from a wrong
# position or rank differs. Sums over 1024 ranks stay exact in float32.
PERIOD, TAGS = 251, 64
# Environment variables that affect NCCL's choice of algorithm.
SETTINGS = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
# An array takes at most this share of a device's free memory: it has a copy, and NCCL needs buffers.
DEVICE_SHARE = 0.25


def main() -> int:
    """Join the others, then answer each request until stdin ends. Report errors to the parent; the exit status is 0."""
    say = claim_stdout()
    asked = requests()
    try:
        rank = Rank(next(asked), say)
        for request in asked:
            rank.measure(str(request["collective"]), int(request["size"]), float(request["for_s"]))
    except CannotLook as error:
        say({"error": str(error), "end": True})
    except RuntimeError as error:  # torch raises this for any error of the backend and the driver
        device_lifetime.record_error(error)
        # NCCL's message follows torch's.
        text, _, last = str(error).partition("Last error:")
        say({"error": first_line(last if last.strip() else text) or type(error).__name__, "end": True})
    # The process skips torch's teardown, which would wait for ranks that may be gone.
    device_lifetime.leave(0)


class Rank:
    """A device and its place among the ranks. Raises CannotLook and torch's errors."""

    def __init__(self, setup: dict[str, Any], say: Send) -> None:
        self.say, self.rank, self.world = say, int(setup["rank"]), int(setup["world"])
        kind = str(setup["kind"])
        ids = setup["devices"]
        self.accel = accel.open_device(ids[self.rank] if ids else _by_local_rank(kind, int(setup["local_rank"])))
        self.accel.make_current()
        self.next = torch.device(ids[(self.rank + 1) % self.world]) if ids else None
        say({"step": "joining"})
        store = dist.TCPStore(
            setup["host"], int(setup["port"]), None, False, datetime.timedelta(seconds=setup["limit_s"])
        )
        # The parent's limit ends a hang. torch's timeout is longer, because it ends the process without a report.
        longest = datetime.timedelta(hours=1)
        place = dist.PrefixStore(setup["prefix"], store)
        dist.init_process_group(BACKENDS[kind], store=place, rank=self.rank, world_size=self.world, timeout=longest)
        self.word = torch.zeros(1, device=self.accel.device)
        self.together()
        version = torch.cuda.nccl.version() if kind == "cuda" else None
        say(
            {
                "ready": True,
                "room": self._room(float(setup["host_share"])),
                "device": to_json(self.accel.ref),
                "host": socket.gethostname(),
                "version": ".".join(map(str, version)) if isinstance(version, tuple) else version,
                "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
                "end": True,
            }
        )

    def _room(self, host_share: float) -> int:
        info = self.accel.memory_info()
        if info is None:  # the ranks of a machine share its memory; each has an array and its copy
            return int(host.memory().usable * host_share / (2 * int(os.environ.get("LOCAL_WORLD_SIZE", self.world))))
        return int(info[0] * DEVICE_SHARE)

    def together(self) -> None:
        """Wait until every rank has called this."""
        dist.all_reduce(self.word)
        self.accel.synchronize()

    def slowest(self, seconds: float) -> float:
        """Return the largest value of all ranks, the same on each. Raise CannotLook if that cannot be it."""
        figure = torch.full((1,), seconds, device=self.accel.device)
        dist.all_reduce(figure, dist.ReduceOp.MAX)
        largest = float(figure.item())
        # Float32 rounds the rank's own time too.
        if not (1 - 1e-6) * seconds <= largest < math.inf:
            raise CannotLook("all-reduce computes wrongly", f"the largest of all ranks' times cannot be {largest:g} s")
        return largest

    def measure(self, collective: str, size: int, for_s: float) -> None:
        """Time a collective for about `for_s` seconds, and verify a call before and after."""
        self.accel.empty_cache()
        with no_room(self.accel, "not enough memory for the buffers", "collective.memory", fix=""):
            work = CollectiveWork(collective, self.rank, self.world, size // ITEM, self.accel.device, self.next)
        self.say({"step": "starting"})
        self.accel.reset_peak()
        self.together()
        self.say({"step": "calling"})
        wrong = self._wrong(work, 1)
        self.say({"step": "timing"})
        self._window(work, WARM_UP - 1)
        each_s = self.slowest(self._window(work, 1)[1])
        calls = min(max(round(WINDOW_S / max(each_s, 1e-6)), 1), MOST_CALLS)
        count = min(max(int(for_s / (each_s * calls)), LEAST_WINDOWS), MOST_WINDOWS)
        started = timing.started_now()
        windows = []
        for _ in range(count):
            self.together()
            windows.append(self._window(work, calls))
            self.say({"step": "timing"})
        # The second verified call has new data, because repeated in-place sums have changed the array.
        wrong += self._wrong(work, 2)
        self.say(
            {
                "started": started,
                "calls": calls,
                "began_s": [began for began, _ in windows],
                "samples_s": [length for _, length in windows],
                "verified_elements": 2 * work.out.numel(),
                "wrong_elements": wrong,
                "memory": to_json(self.accel.memory()),
                "end": True,
            }
        )

    def _window(self, work: CollectiveWork, calls: int) -> tuple[float, float]:
        """Return the start and the length of calls with one wait at the end."""
        began = self.accel.host_now()
        for _ in range(calls):
            work.call()
        self.accel.synchronize()
        return began, self.accel.host_now() - began

    def _wrong(self, work: CollectiveWork, trial: int) -> int:
        """Return the number of wrong elements of one call."""
        work.fill(trial)
        self.accel.synchronize()
        # Ranks wait until all have filled their arrays, because a peer copy writes into the neighbour's memory.
        self.together()
        self._window(work, 1)
        return work.wrong(trial)


def _by_local_rank(kind: str, local_rank: int) -> str:
    """Return the device of a rank that a launcher started: by its local rank, or its only visible device."""
    if kind == "cpu":
        return kind
    count = accel.device_count(kind)
    if local_rank >= count > 1 or not count:
        raise CannotLook(f"rank {local_rank} of this machine has no GPU", f"torch sees {count}", "start fewer ranks")
    return f"{kind}:{local_rank if count > 1 else 0}"


class CollectiveWork:
    """A collective on one rank: input, output and the call. `count` is the number of elements of the whole array."""

    def __init__(
        self, collective: str, rank: int, world: int, count: int, device: torch.device, neighbour: torch.device | None
    ) -> None:
        self.collective, self.rank, self.world, self.count = collective, rank, world, count
        self.before, self.behind = (rank - 1) % world, (rank + 1) % world
        # All-reduce and broadcast work in place, as programs usually call them.
        in_place = collective in ("all-reduce", "broadcast")
        part = count // world
        there = neighbour if collective == PEER_COPY and neighbour is not None else device
        self.out = torch.empty(part if collective == "reduce-scatter" else count, device=there)
        self.given = self.out if in_place else torch.empty(part if collective == "all-gather" else count, device=device)
        self.call: Callable[[], object] = {
            "all-reduce": lambda: dist.all_reduce(self.out),
            "all-gather": lambda: dist.all_gather_into_tensor(self.out, self.given),
            "reduce-scatter": lambda: dist.reduce_scatter_tensor(self.out, self.given),
            "all-to-all": lambda: dist.all_to_all_single(self.out, self.given),
            "broadcast": lambda: dist.broadcast(self.out, 0),
            "send-receive": self._pass_on,
            PEER_COPY: lambda: self.out.copy_(self.given, non_blocking=True),
        }[collective]

    def _pass_on(self) -> None:
        sends = dist.P2POp(dist.isend, self.given, self.behind), dist.P2POp(dist.irecv, self.out, self.before)
        for request in dist.batch_isend_irecv(list(sends)):
            request.wait()

    def fill(self, trial: int) -> None:
        """Write this rank's input, and fill its output with NaN."""
        self.out.fill_(torch.nan)
        if self.collective != "broadcast" or not self.rank:
            for start, places in self._slices(self.given):
                self.given[start : start + SLICE] = _value(places, trial, self.rank)

    def wrong(self, trial: int) -> int:
        """Return the number of wrong elements in the output."""
        parts = ((self.out[start : start + SLICE], places) for start, places in self._slices(self.out))
        return sum(int((part != self._wanted(places, trial)).sum()) for part, places in parts)

    def _wanted(self, places: torch.Tensor, trial: int) -> torch.Tensor:
        part = self.count // self.world
        if self.collective in ("all-reduce", "reduce-scatter"):
            shift = self.rank * part if self.collective == "reduce-scatter" else 0
            tags = sum(_tag(trial, rank) for rank in range(self.world))
            return ((places + shift) % PERIOD * self.world + tags).to(torch.float32)
        if self.collective in ("all-gather", "all-to-all"):
            values = places % part + (self.rank * part if self.collective == "all-to-all" else 0)
            return (values % PERIOD + (places // part + trial) % TAGS * 256).to(torch.float32)
        senders = {"broadcast": 0, "send-receive": self.before, PEER_COPY: self.rank}
        return _value(places, trial, senders[self.collective])

    def _slices(self, array: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        for start in range(0, array.numel(), SLICE):
            yield start, torch.arange(start, min(start + SLICE, array.numel()), device=array.device)


def _tag(trial: int, rank: int) -> int:
    return (rank + trial) % TAGS * 256


def _value(places: torch.Tensor, trial: int, rank: int) -> torch.Tensor:
    """Return a rank's values at these positions in the verified call `trial`: integers, which float32 adds exactly."""
    return (places % PERIOD + _tag(trial, rank)).to(torch.float32)


def size_of(collective: str, size: int, world: int) -> int:
    """Return the size rounded down to whole elements, or to equal parts for `world` ranks; never 0."""
    grain = ITEM * (world if COLLECTIVES[collective].parts else 1)
    return max(size // grain, 1) * grain
