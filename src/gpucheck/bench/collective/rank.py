"""One rank of `bench collective`: a process that joins the other ranks, and times and verifies collectives.

A rank sends each step to its parent (`work.Meeting`) as a line, so that the parent knows where a rank hangs.
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
# A window is long compared with a synchronization and the unequal starts of ranks (20 µs, 100 µs over a network).
WINDOW_S = 0.02
MOST_CALLS, LEAST_WINDOWS, MOST_WINDOWS = 1000, 3, 20
# The number of elements compared at once. Positions and expected values take several times the memory of a slice.
SLICE = 1 << 22
# The value of an element depends on its position modulo PERIOD (a prime) and on the tag of its rank. Data from a wrong
# position or rank therefore differs. Sums over 1024 ranks are exact in float32.
PERIOD, TAGS = 251, 64
# These environment variables affect NCCL's choice of algorithm.
SETTINGS = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
# An array takes at most this share of a device's free memory, because the array has a copy and NCCL needs buffers.
DEVICE_SHARE = 0.25


def main() -> int:
    """Join the other ranks, then answer requests until stdin ends. Errors go to the parent; the exit status is 0."""
    send = claim_stdout()
    messages = requests()
    try:
        rank = Rank(next(messages), send)
        for request in messages:
            rank.measure(str(request["collective"]), int(request["size"]), float(request["for_s"]))
    except CannotLook as error:
        send({"error": str(error), "end": True})
    except RuntimeError as error:  # torch raises this class for any error of the backend and the driver
        device_lifetime.record_error(error)
        # NCCL's message follows torch's message.
        text, _, last = str(error).partition("Last error:")
        send({"error": first_line(last if last.strip() else text) or type(error).__name__, "end": True})
    # The process skips torch's teardown, which would wait for ranks that may be gone.
    device_lifetime.leave(0)


class Rank:
    """A device among the ranks. Raises CannotLook and torch's errors."""

    def __init__(self, setup: dict[str, Any], send: Send) -> None:
        self.send, self.rank, self.world = send, int(setup["rank"]), int(setup["world"])
        kind = str(setup["kind"])
        ids = setup["devices"]
        self.accel = accel.open_device(ids[self.rank] if ids else _by_local_rank(kind, int(setup["local_rank"])))
        self.accel.make_current()
        self.next = torch.device(ids[(self.rank + 1) % self.world]) if ids else None
        send({"step": "joining"})
        limit = datetime.timedelta(seconds=setup["limit_s"])
        store = dist.PrefixStore(setup["prefix"], dist.TCPStore(setup["host"], int(setup["port"]), None, False, limit))
        # The parent's limit ends a hang. torch's timeout is longer, because torch ends the process without a report.
        timeout = datetime.timedelta(hours=1)
        dist.init_process_group(BACKENDS[kind], store=store, rank=self.rank, world_size=self.world, timeout=timeout)
        self.word = torch.zeros(1, device=self.accel.device)
        self.together()
        version = torch.cuda.nccl.version() if kind == "cuda" else None
        send(
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
        if (info := self.accel.memory_info()) is not None:
            return int(info[0] * DEVICE_SHARE)
        # The ranks of a machine share its memory, and each has an array and a copy.
        return int(host.memory().usable * host_share / (2 * int(os.environ.get("LOCAL_WORLD_SIZE", self.world))))

    def together(self) -> None:
        """Wait until every rank has called this."""
        dist.all_reduce(self.word)
        self.accel.synchronize()

    def slowest(self, seconds: float) -> float:
        """Return the longest time of all ranks. Raise CannotLook if the result is impossible."""
        times = torch.full((1,), seconds, device=self.accel.device)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        largest = float(times.item())
        # float32 rounds the time of this rank too.
        if not (1 - 1e-6) * seconds <= largest < math.inf:
            raise CannotLook("all-reduce computes wrongly", f"the largest of all ranks' times cannot be {largest:g} s")
        return largest

    def measure(self, collective: str, size: int, for_s: float) -> None:
        """Time a collective for about `for_s` seconds, and verify a call before and after."""
        self.accel.empty_cache()
        with no_room(self.accel, "not enough memory for the buffers", "collective.memory", fix=""):
            work = CollectiveWork(collective, self.rank, self.world, size // ITEM, self.accel.device, self.next)
        self.send({"step": "starting"})
        self.accel.reset_peak()
        self.together()
        self.send({"step": "calling"})
        wrong = self._wrong(work, 1)
        self.send({"step": "timing"})
        self._window(work, WARM_UP - 1)
        call_s = self.slowest(self._window(work, 1)[1])
        calls = min(max(round(WINDOW_S / max(call_s, 1e-6)), 1), MOST_CALLS)
        count = min(max(int(for_s / (call_s * calls)), LEAST_WINDOWS), MOST_WINDOWS)
        started = timing.started_now()
        windows = []
        for _ in range(count):
            self.together()
            windows.append(self._window(work, calls))
            self.send({"step": "timing"})
        # The second verified call has new data, because repeated in-place sums have changed the array.
        wrong += self._wrong(work, 2)
        self.send(
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
        """Run calls with one wait at the end. Return the start and the length on the host's clock."""
        began = self.accel.host_now()
        for _ in range(calls):
            work.call()
        self.accel.synchronize()
        return began, self.accel.host_now() - began

    def _wrong(self, work: CollectiveWork, trial: int) -> int:
        """Verify one call. Return the number of wrong elements."""
        work.fill(trial)
        self.accel.synchronize()
        # A peer copy writes into the memory of another rank, so all ranks must have filled their arrays.
        self.together()
        self._window(work, 1)
        return work.wrong(trial)


def _by_local_rank(kind: str, local_rank: int) -> str:
    """Return the device of a rank that a launcher started: its only visible device, or the device of its local rank."""
    if kind == "cpu":
        return kind
    count = accel.device_count(kind)
    if local_rank >= count > 1 or not count:
        raise CannotLook(f"rank {local_rank} of this machine has no GPU", f"torch sees {count}", "start fewer ranks")
    return f"{kind}:{local_rank if count > 1 else 0}"


class CollectiveWork:
    """A collective on one rank: input, output and call. `count` is the number of elements of the whole array."""

    def __init__(
        self, collective: str, rank: int, world: int, count: int, device: torch.device, neighbour: torch.device | None
    ) -> None:
        self.collective, self.rank, self.world, self.count = collective, rank, world, count
        self.before, self.behind = (rank - 1) % world, (rank + 1) % world
        # All-reduce and broadcast work in place, as programs usually call them.
        in_place = collective in ("all-reduce", "broadcast")
        part = count // world
        target = neighbour if collective == PEER_COPY and neighbour is not None else device
        self.out = torch.empty(part if collective == "reduce-scatter" else count, device=target)
        self.input = self.out if in_place else torch.empty(part if collective == "all-gather" else count, device=device)
        self.call: Callable[[], object] = {
            "all-reduce": lambda: dist.all_reduce(self.out),
            "all-gather": lambda: dist.all_gather_into_tensor(self.out, self.input),
            "reduce-scatter": lambda: dist.reduce_scatter_tensor(self.out, self.input),
            "all-to-all": lambda: dist.all_to_all_single(self.out, self.input),
            "broadcast": lambda: dist.broadcast(self.out, 0),
            "send-receive": self._send_receive,
            PEER_COPY: lambda: self.out.copy_(self.input, non_blocking=True),
        }[collective]

    def _send_receive(self) -> None:
        operations = dist.P2POp(dist.isend, self.input, self.behind), dist.P2POp(dist.irecv, self.out, self.before)
        for request in dist.batch_isend_irecv(list(operations)):
            request.wait()

    def fill(self, trial: int) -> None:
        """Write the input of this rank, and fill the output with NaN."""
        self.out.fill_(torch.nan)
        if self.collective != "broadcast" or not self.rank:
            for start, positions in self._slices(self.input):
                self.input[start : start + SLICE] = _value(positions, trial, self.rank)

    def wrong(self, trial: int) -> int:
        slices = ((self.out[start : start + SLICE], positions) for start, positions in self._slices(self.out))
        return sum(int((part != self._expected(positions, trial)).sum()) for part, positions in slices)

    def _expected(self, positions: torch.Tensor, trial: int) -> torch.Tensor:
        part = self.count // self.world
        if self.collective in ("all-reduce", "reduce-scatter"):
            shift = self.rank * part if self.collective == "reduce-scatter" else 0
            tags = sum(_tag(trial, rank) for rank in range(self.world))
            return ((positions + shift) % PERIOD * self.world + tags).to(torch.float32)
        if self.collective in ("all-gather", "all-to-all"):
            values = positions % part + (self.rank * part if self.collective == "all-to-all" else 0)
            return (values % PERIOD + (positions // part + trial) % TAGS * 256).to(torch.float32)
        return _value(
            positions, trial, {"broadcast": 0, "send-receive": self.before, PEER_COPY: self.rank}[self.collective]
        )

    def _slices(self, array: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        for start in range(0, array.numel(), SLICE):
            yield start, torch.arange(start, min(start + SLICE, array.numel()), device=array.device)


def _tag(trial: int, rank: int) -> int:
    return (rank + trial) % TAGS * 256


def _value(positions: torch.Tensor, trial: int, rank: int) -> torch.Tensor:
    """Return a rank's values at these positions in the verified call `trial`: integers that float32 adds exactly."""
    return (positions % PERIOD + _tag(trial, rank)).to(torch.float32)


def size_of(collective: str, size: int, world: int) -> int:
    """Round a size down to whole elements, or to equal parts for `world` ranks, but not to 0."""
    grain = ITEM * (world if COLLECTIVES[collective].parts else 1)
    return max(size // grain, 1) * grain
