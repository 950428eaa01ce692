"""gpucheck's figures beside its peers' on one GPU, in turns, like with like, as ratios with intervals.

    python benchmarks/gpu_peers.py [--nvbandwidth PATH] [--mamf-finder PATH] [--only PART]... [--pairs 6] [--json FILE]

PATH is a peer that was built or fetched elsewhere; what is not given or not installed is left out, and named. What is
compared, and on which terms:

- `copies`: nvbandwidth's copies by copy engine, one way, both ways and within the device (512 MiB, 16 copies, median of
  3), beside `bench transfer` and `bench bandwidth` of that size. Each side of a pair is a process. A copy within the
  device counts once.
- `timer`: torch.utils.benchmark's `adaptive_autorange` and the loop of `bench matmul`, on the same operands.
- `do_bench`: `triton.testing.do_bench` (25 ms to warm up, 100 ms, mean) and that loop, the caches flushed before each
  window of one call.
- `mamf`: mamf-finder's loop (50 + 100 calls; before each it flushes 256 MiB and writes C anew; B transposed; median)
  and that loop with the same layout, flush and writing, on the shape that `bench matmul --search` finds and on the
  best of mamf-finder's quick range. Then both shapes by mamf-finder's loop: what our search gives up.
- `batch`: a batch size by `find-batch-size`, by Lightning's tuner and by accelerate, in a budget of `--memory-limit`.
  Each answer is then trained in a fresh plain process.

`--device cpu` leaves out all but `timer`. With `--simulated` (torch's CUDA code on a simulated runtime) shapes are
small and no ratio is judged. Exit status 1 where a bar is missed, 3 where nothing could be compared.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

import batch_oracle  # noqa: E402  (found beside this file)
import batch_peers  # noqa: E402
from batch_peers import OURS  # noqa: E402
from intervals import Ratio, in_turns, ratio_of  # noqa: E402

from gpucheck import stats, units  # noqa: E402

FEWEST_PAIRS = 6
# Seconds for one side of a pair that is measured in this process.
SIDE_S = 0.5
# A process of a peer that takes longer is broken.
LONGEST_S = 120.0
# nvbandwidth's own size, and that of the copies beside it.
COPY_BYTES = 512 * units.MIB
# mamf-finder's flush, triton's as well; its calls; the range that its documentation calls a quick run.
FLUSH_BYTES = 256 * units.MIB
MAMF_CALLS, MAMF_WARM_UP = 100, 50
QUICK_RANGE = tuple((m, 4096, 4096) for m in range(256, 20481, 256))
SQUARE = (8192, 8192, 8192)
SMALL, SMALL_RANGE = (256, 256, 256), ((256, 256, 256), (512, 256, 256))
LEAST_OF_BEST = 0.99
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Compared:
    """A comparison as a row of the table: the peer's figure, ours over it, the bar, and whether it is passed."""

    part: str
    what: str
    peer: str
    ours: str
    bar: str
    passes: bool
    ratio: Ratio | None = None

    @property
    def line(self) -> str:
        outcome = "pass" if self.passes else "MISS"
        return f"| {self.part} | {self.what} | {self.peer} | {self.ours} | {self.bar} | {outcome} |"


def within(part: str, ratio: Ratio, peer: str, most: float | None) -> Compared:
    """Return a ratio that has to lie within `most` of 1; with None it has no bar."""
    bar = "none" if most is None else f"within {most:.0%}"
    passes = most is None or abs(ratio.median - 1) <= most
    return Compared(part, ratio.what, peer, f"{ratio.text}, {ratio.pairs} pairs", bar, passes, ratio)


def tflops(ratio: Ratio) -> str:
    return f"{units.significant(ratio.peer_rate / 1e12, 4)} TFLOP/s"


class Missing(Exception):
    """A peer that is not here, and why."""


@dataclass(frozen=True)
class Bench:
    """The options of a run, and the device that is opened once one of the parts needs it."""

    given: argparse.Namespace

    @functools.cached_property
    def accel(self) -> Any:
        from gpucheck.machine.accel import open_device

        accel = open_device(self.given.device)
        accel.make_current()
        return accel

    @property
    def shape(self) -> Shape:
        return SMALL if self.given.simulated or self.given.device == "cpu" else SQUARE

    def document(self, *arguments: str) -> dict[str, Any]:
        """The document of a command of gpucheck. Raises Missing where it printed none."""
        command = [sys.executable, "-m", "gpucheck", *arguments, "--device", self.given.device, "--json", "--quiet"]
        done = subprocess.run(command, env=batch_oracle.environment(), stdout=subprocess.PIPE, text=True, check=False)
        if not done.stdout:
            raise Missing(f"{' '.join(command)} ended with {done.returncode} and no document")
        document: dict[str, Any] = json.loads(done.stdout)
        return document


# -- copies: nvbandwidth -----------------------------------------------------------------------------------------------

# nvbandwidth's case; the name and case of our row.
CASES = {
    "host_to_device_memcpy_ce": ("transfer", {"direction": "host_to_device", "timed": "link"}),
    "device_to_host_memcpy_ce": ("transfer", {"direction": "device_to_host", "timed": "link"}),
    "host_to_device_bidirectional_memcpy_ce": ("transfer.both_ways", {"direction": "host_to_device"}),
    "device_to_host_bidirectional_memcpy_ce": ("transfer.both_ways", {"direction": "device_to_host"}),
    "device_local_copy": ("bandwidth", {"operation": "copy"}),
}
ONE_WAY, BOTH_WAYS = 0.01, 0.03


def copies(bench: Bench) -> Iterator[Compared]:
    """Copies by nvbandwidth and by gpucheck, a process each, in turns."""
    given = bench.given
    if given.nvbandwidth is None:
        raise Missing("--nvbandwidth PATH was not given")
    size = f"{COPY_BYTES // units.MIB}MiB"
    pairs: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    for pair in range(given.pairs):
        if pair % 2 == 0:
            ours, theirs = own_copies(bench, size), nvbandwidth(given.nvbandwidth)
        else:
            theirs, ours = nvbandwidth(given.nvbandwidth), own_copies(bench, size)
        for case in CASES:
            if case in ours and case in theirs:
                pairs[case].append((ours[case], theirs[case]))
    for case, taken in pairs.items():
        if len(taken) < FEWEST_PAIRS:
            say(f"copies: {case} left out, {len(taken)} of {given.pairs} pairs have it")
            continue
        ratio = ratio_of(case, COPY_BYTES, taken)
        rate = f"{units.significant(ratio.peer_rate / 1e9, 4)} GB/s"
        yield within("copies", ratio, rate, BOTH_WAYS if "bidirectional" in case else ONE_WAY)


def own_copies(bench: Bench, size: str) -> dict[str, float]:
    """Seconds of one copy by case."""
    transfer = bench.document(
        "bench", "transfer", "--size", size, "--only", "copies,both_ways", "--host-memory", "pinned"
    )
    return times_of(transfer["measurements"] + bench.document("bench", "bandwidth", "--size", size)["measurements"])


def times_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of one copy that a document's rows give for each of nvbandwidth's cases."""
    return {
        case: row["time_s"]["median"]
        for case, (name, wanted) in CASES.items()
        for row in rows
        if row["name"] == name and row["time_s"] and wanted.items() <= row["case"].items()
    }


def nvbandwidth(path: str) -> dict[str, float]:
    """Seconds of one copy by case, of the first GPU. Raises Missing where it fails."""
    command = [path, "--json", "--bufferSize", str(COPY_BYTES // units.MIB), "--testcase", *CASES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    try:
        answer = json.loads(done.stdout)["nvbandwidth"]
    except (ValueError, KeyError):
        raise Missing(f"nvbandwidth ended with {done.returncode}: {done.stderr.strip() or done.stdout[:200]}") from None
    # The matrix has a row for the CPU and a column for each GPU.
    rates = {case["name"]: case["bandwidth_matrix"][0][0] for case in answer["testcases"] if "bandwidth_matrix" in case}
    return {case: COPY_BYTES / (float(rate) * 1e9) for case, rate in rates.items() if rate != "N/A"}


# -- products: torch's Timer, triton's do_bench, mamf-finder -----------------------------------------------------------


def product(bench: Bench, shape: Shape, *, is_transposed: bool = False) -> tuple[Callable[[], Any], Any]:
    """The call of a product in bfloat16 (on a CPU float32), and its result C."""
    import torch

    m, n, k = shape
    dtype = torch.float32 if bench.accel.is_cpu else torch.bfloat16
    device = bench.accel.device
    a = torch.randn(m, k, device=device).to(dtype)
    b = torch.randn(n, k, device=device).to(dtype).t() if is_transposed else torch.randn(k, n, device=device).to(dtype)
    out = torch.empty(m, n, dtype=dtype, device=device)
    return functools.partial(torch.mm, a, b, out=out), out


def by_gpucheck(bench: Bench, call: Callable[[], Any], prepare: Callable[[int, int], None] | None = None) -> float:
    """Seconds of one call by the loop of `bench matmul`."""
    from gpucheck.measure import timing

    clock: timing.Clock = "device events" if bench.accel.has_events else "host"
    limits = timing.Limits(SIDE_S, SIDE_S / 4)
    timed = timing.measure(bench.accel, timing.Work(call, prepare=prepare), clock=clock, limits=limits)
    return stats.median(timed.run.samples_s) / timed.run.calls_per_sample


def timer(bench: Bench) -> Iterator[Compared]:
    """torch.utils.benchmark, on the same operands."""
    import torch
    from torch.utils.benchmark import Timer

    call, _ = product(bench, bench.shape)
    theirs = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    ratio = in_turns(
        name_of(bench.shape),
        flop(bench.shape),
        lambda: by_gpucheck(bench, call),
        lambda: float(theirs.adaptive_autorange(min_run_time=SIDE_S, max_run_time=2 * SIDE_S).median),
        bench.given.pairs,
    )
    yield within("timer", ratio, tflops(ratio), None)


def do_bench(bench: Bench) -> Iterator[Compared]:
    """triton.testing.do_bench, with its flush."""
    if importlib.util.find_spec("triton") is None or bench.accel.is_cpu:
        raise Missing("triton is not installed, or the device is a CPU")
    testing: Any = importlib.import_module("triton.testing")
    call, out = product(bench, bench.shape)
    flush = flushing(bench, out, None)
    ratio = in_turns(
        name_of(bench.shape),
        flop(bench.shape),
        lambda: by_gpucheck(bench, call, flush),
        lambda: float(testing.do_bench(call, warmup=25, rep=100, return_mode="mean")) / 1e3,
        bench.given.pairs,
    )
    yield within("do_bench", ratio, tflops(ratio), None)


def mamf(bench: Bench) -> Iterator[Compared]:
    """mamf-finder's loop on our shape and ours on its shape, then both shapes by its loop."""
    if bench.given.mamf_finder is None or bench.accel.is_cpu:
        raise Missing("--mamf-finder PATH was not given, or the device is a CPU")
    finder = imported(bench.given.mamf_finder)
    ours, theirs = own_best(bench), their_best(bench, finder)
    say(f"mamf: the best shape is {name_of(ours)} of ours, {name_of(theirs)} of mamf-finder's")
    for shape in dict.fromkeys((ours, theirs)):
        call, out = product(bench, shape, is_transposed=True)
        flush = flushing(bench, out, out.clone().normal_())
        ratio = in_turns(
            name_of(shape),
            flop(shape),
            functools.partial(by_gpucheck, bench, call, flush),
            functools.partial(by_mamf, bench, finder, shape),
            bench.given.pairs,
        )
        yield within("mamf", ratio, tflops(ratio), None)
    best = in_turns(
        "our best shape over its best, by its loop",
        flop(theirs),
        # As long as the same work would take at this shape's rate.
        lambda: by_mamf(bench, finder, ours) * flop(theirs) / flop(ours),
        lambda: by_mamf(bench, finder, theirs),
        bench.given.pairs,
    )
    text = f"{best.text}, {best.pairs} pairs"
    yield Compared(
        "mamf", best.what, tflops(best), text, f"at least {LEAST_OF_BEST}", best.median >= LEAST_OF_BEST, best
    )


def imported(path: str) -> ModuleType:
    """A program, imported from its path."""
    spec = importlib.util.spec_from_file_location("mamf_finder", path)
    if spec is None or spec.loader is None:
        raise Missing(f"{path} is no Python program")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_mamf(bench: Bench, finder: ModuleType, shape: Shape) -> float:
    """Seconds of one product by mamf-finder's loop: the median of its calls."""
    import torch

    _, median, _ = finder.benchmark_mm(*shape, torch.bfloat16, bench.accel.device, MAMF_CALLS, MAMF_WARM_UP)
    return flop(shape) / (float(median) * 1e12)


def own_best(bench: Bench) -> Shape:
    """The fastest shape of `bench matmul --search`; on a simulated runtime, where none has a rate, a small one."""
    if bench.given.simulated:
        return SMALL
    document = bench.document("bench", "matmul", "--search", "--dtype", "bfloat16")
    searches = [search for search in document["results"].get("bench_matmul_search", ()) if search["best"]]
    if not searches:
        raise Missing("bench matmul --search found no shape")
    best = searches[0]["best"]
    return best["m"], best["n"], best["k"]


def their_best(bench: Bench, finder: ModuleType) -> Shape:
    """The fastest shape of mamf-finder's quick range by its loop."""
    shapes: Sequence[Shape] = SMALL_RANGE if bench.given.simulated else QUICK_RANGE
    return min(shapes, key=lambda shape: by_mamf(bench, finder, shape) / flop(shape))


def flushing(bench: Bench, out: Any, fresh: Any) -> Callable[[int, int], None]:
    """Return the untimed step before each window: it overwrites the caches, and C with `fresh`."""
    import torch

    memory = torch.empty(FLUSH_BYTES // 4, dtype=torch.int, device=bench.accel.device)

    def prepare(sample: int, calls: int) -> None:
        memory.zero_()
        if fresh is not None:
            out.copy_(fresh)

    return prepare


def flop(shape: Shape) -> float:
    m, n, k = shape
    return 2.0 * m * n * k


def name_of(shape: Shape) -> str:
    return "x".join(map(str, shape))


# -- batch sizes: Lightning's tuner and accelerate ---------------------------------------------------------------------


def batch(bench: Bench) -> Iterator[Compared]:
    """Each side's answer, trained in a fresh plain process; ours is to be the largest, in the fewest trials."""
    given = bench.given
    peers = [name for name in batch_peers.PEERS if batch_peers.installed(name)]
    if not peers or given.device == "cpu":
        raise Missing("neither lightning nor accelerate is installed, or the device is a CPU")
    budget = units.parse_size(given.memory_limit, "--memory-limit")
    for workload in given.workload or ("resnet18", "mlp"):
        taken: dict[str, batch_peers.Taken] = {}
        for side in (OURS, *peers):
            first = batch_peers.first_size(side, (taken[OURS].answer or 1) if OURS in taken else 1)
            try:
                taken[side] = batch_peers.measured(side, workload, given.memory_limit, first, LONGEST_S, given.device)
            except subprocess.CalledProcessError as error:
                say(f"batch: {side} on {workload} failed: {error}")
        yield from judged(workload, taken, budget, given.device)


def judged(workload: str, taken: Mapping[str, batch_peers.Taken], budget: int, device: str) -> Iterator[Compared]:
    """Compare our answer with each peer's, every answer trained again."""
    trains = {
        side: entry.answer is not None
        and batch_oracle.trained(workload, entry.answer, budget, device).within(budget) is True
        for side, entry in taken.items()
    }
    ours = taken.get(OURS)
    for peer, theirs in taken.items():
        if ours is None or peer == OURS:
            continue
        figures = {
            side: f"{entry.answer or 'no answer'} ({'trains' if trains[side] else 'does not train'}), "
            f"{entry.trials} trials, {entry.answer_s:.0f} s"
            for side, entry in ((OURS, ours), (peer, theirs))
        }
        is_larger = not trains[peer] or (ours.answer or 0) >= (theirs.answer or 0)
        passes = trains[OURS] and is_larger and (ours.trials < theirs.trials or not trains[peer])
        bar = "trains, as large, in fewer trials"
        yield Compared("batch", f"{workload}, {peer}", figures[peer], figures[OURS], bar, passes)


PARTS: dict[str, Callable[[Bench], Iterator[Compared]]] = {
    "copies": copies,
    "timer": timer,
    "do_bench": do_bench,
    "mamf": mamf,
    "batch": batch,
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nvbandwidth", metavar="PATH", help="its program")
    parser.add_argument("--mamf-finder", metavar="PATH", help="mamf-finder.py")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="repeatable")
    parser.add_argument("--pairs", type=int, default=FEWEST_PAIRS)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--workload", action="append", help="of `batch`; repeatable")
    parser.add_argument("--memory-limit", default="8GiB", help="of `batch`")
    parser.add_argument("--simulated", action="store_true", help="a simulated runtime: nothing is judged")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ratios into it")
    given = parser.parse_args()
    if given.pairs < FEWEST_PAIRS:
        parser.error(f"--pairs {given.pairs}: fewer than {FEWEST_PAIRS} have no interval")
    from gpucheck.errors import GpucheckError

    bench, found = Bench(given), list[Compared]()
    print("| part | what | peer | gpucheck, as a ratio of rates | bar | |\n|---|---|---|---|---|---|", flush=True)
    for name in given.only or PARTS:
        try:
            for compared in PARTS[name](bench):
                found.append(compared)
                print(compared.line, flush=True)
                if given.json:
                    given.json.write_text(json.dumps(list(map(asdict, found)), indent=1) + "\n", encoding="utf-8")
        except (Missing, GpucheckError, RuntimeError, subprocess.TimeoutExpired) as error:
            say(f"{name} left out: {error}")
    if not found:
        return 3
    return 0 if given.simulated or all(compared.passes for compared in found) else 1


if __name__ == "__main__":
    sys.exit(main())
