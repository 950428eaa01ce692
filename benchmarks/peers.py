"""How gpucheck compares with established tools.

    python benchmarks/peers.py --matmul [--threads N] [--pairs 21] [--json]
    python benchmarks/peers.py --doctor --peer-python PATH [--rounds 9] [--fault WORD] [--json]

--matmul: products on the CPU by the measuring loop of `bench matmul`, and by torch.utils.benchmark's
Timer.adaptive_autorange, on the same operands, in turns in one process. Passes where the median of the ratios of rates
lies within 2 %.

--doctor: the same faults before `gpucheck doctor`, `python -m torch.utils.collect_env`, cuda-doctor 0.2.0 and
env-doctor 0.3.5: who names the cause, by words that doctor_faults.py holds for each, and who does not end within a
minute. (torch) is a cause that stands in a warning of torch's own on stderr alone: any program gets it that asks for
CUDA. Passes where ours names all, and where each peer takes longer than ours on a machine without a GPU. The faults are
made of libraries, variables, packages and files, which every tool meets; those that need another /dev or /sys are left
out, for no peer takes one. PATH is an interpreter with a CUDA build of torch and both peers, on Linux without NVIDIA's
driver:

    python -m venv E && E/bin/pip install torch==2.14.1 cuda-doctor==0.2.0 env-doctor==0.3.5 nvidia-ml-py

Exit status 1 where a line does not pass.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from ctypes.util import find_library
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src"), str(Path(__file__).resolve().parent)]

from intervals import Ratio, in_turns  # noqa: E402  (found beside this file)

from gpucheck.bench.dtypes import Dtype  # noqa: E402

WITHIN = 0.02
FEWEST_PAIRS = 15
SHAPES = ((512, 512, 512), (1024, 1024, 1024), (2048, 256, 1024))
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
# Of one side of a pair; the Timer takes at least so long, and goes on until its own spread is small.
SIDE_S = 0.2


def matmul(threads: int | None, pairs: int) -> list[Ratio]:
    """`bench matmul` against torch's own Timer, on the same operands."""
    import torch
    from torch.utils.benchmark import Timer

    from gpucheck.bench.dtypes import support
    from gpucheck.bench.matmul.product import Matrices, RepeatCheck
    from gpucheck.machine import accel
    from gpucheck.measure import timing
    from gpucheck.work import precision

    if threads:
        torch.set_num_threads(threads)
    cpu = accel.open_device("cpu")
    found = []
    for dtype in DTYPES:
        if support(dtype, cpu).kind == "emulated":
            continue
        for m, n, k in SHAPES:
            kind = getattr(torch, dtype)
            a, b, out = torch.randn(m, k).to(kind), torch.randn(k, n).to(kind), torch.empty(m, n, dtype=kind)
            nothing = a[:0, :0], b[:0, :0], out[:0, :0]
            torch.mm(a, b, out=out)
            work = timing.Work(
                functools.partial(torch.mm, a, b, out=out),
                empty=functools.partial(torch.mm, nothing[0], nothing[1], out=nothing[2]),
                # As the command does it: results are compared between windows.
                prepare=RepeatCheck([Matrices(a, b, out)], cpu).before,
            )
            timer = Timer(
                "torch.mm(a, b, out=out)",
                globals={"torch": torch, "a": a, "b": b, "out": out},
                num_threads=torch.get_num_threads(),  # its default is one
            )

            def ours(work: timing.Work = work) -> float:
                timed = timing.measure(cpu, work, clock="host", limits=timing.Limits(SIDE_S, SIDE_S / 4))
                return statistics.median(timed.run.samples_s) / timed.run.calls_per_sample

            def theirs(timer: Timer = timer) -> float:
                return float(timer.adaptive_autorange(min_run_time=SIDE_S, max_run_time=2 * SIDE_S).median)

            with precision.precision("ieee"):
                ours(), theirs()
                found.append(in_turns(f"{dtype} {m}x{n}x{k}", 2.0 * m * n * k, ours, theirs, pairs))
    return found


def doctor(python: str, rounds: int, word: str, as_json: bool, keep: Path | None) -> bool:
    """`gpucheck doctor` against its peers: whether every line passes."""
    import doctor_peers
    from doctor_faults import FAULTS

    chosen = [fault for fault in FAULTS if word in fault.name]
    if not as_json:
        print(doctor_peers.head(), flush=True)
    rows = doctor_peers.compare(python, chosen, not as_json, keep)
    timed = doctor_peers.times(python, rounds) if rounds else []
    verdicts = doctor_peers.judge(rows, timed)
    if as_json:
        told = [
            {"fault": row.fault.name, **{tool: doctor_peers.cell(one) for tool, one in row.answers.items()}}
            for row in rows
        ]
        lines = [{"line": text, "passed": passed} for text, passed in verdicts]
        print(json.dumps({"faults": told, "times": [vars(one) for one in timed], "lines": lines}, indent=1))
    for text, passed in verdicts if not as_json else ():
        print(f"doctor {text}: {'PASS' if passed else 'MISS'}")
    return all(passed for _, passed in verdicts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--matmul", action="store_true", help="products, against torch.utils.benchmark.Timer")
    parser.add_argument("--threads", type=int, help="of the CPU; default all")
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--doctor", action="store_true", help="faults, against collect_env, cuda-doctor and env-doctor")
    parser.add_argument("--peer-python", metavar="PATH", help="an interpreter with a CUDA build of torch and the peers")
    parser.add_argument("--rounds", type=int, default=9, help="of the times without a GPU; 0 for none")
    parser.add_argument("--fault", default="", metavar="WORD", help="only faults with this in their names")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write what each tool said of each fault into it")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.matmul == given.doctor:
        parser.error("give --matmul or --doctor")
    if given.doctor:
        return asked_doctor(parser, given)
    if given.pairs < FEWEST_PAIRS:
        parser.error(f"--pairs {given.pairs}: fewer than {FEWEST_PAIRS} prove nothing")
    found = matmul(given.threads, given.pairs)
    agrees = [abs(ratio.median - 1) <= WITHIN for ratio in found]
    if given.json:
        print(
            json.dumps(
                [{**vars(ratio), "agrees": passed} for ratio, passed in zip(found, agrees, strict=True)], indent=1
            )
        )
    for ratio, passed in zip(found, agrees, strict=True) if not given.json else ():
        rate = f"{ratio.text} of {ratio.peer_rate / 1e9:.1f} GFLOP/s"
        print(f"matmul {ratio.what:24} {rate}, {ratio.pairs} pairs: {'PASS' if passed else 'MISS'}")
    return 0 if all(agrees) else 1


def asked_doctor(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """--doctor, with what it needs."""
    import doctor_peers

    if sys.platform != "linux" or find_library("cuda"):
        parser.error("--doctor: the faults are built of fakes, on Linux without NVIDIA's driver")
    if not given.peer_python:
        parser.error("--doctor: give --peer-python")
    if given.rounds and given.rounds < doctor_peers.FEWEST_ROUNDS:
        parser.error(f"--rounds {given.rounds}: fewer than {doctor_peers.FEWEST_ROUNDS} prove nothing")
    try:
        return 0 if doctor(given.peer_python, given.rounds, given.fault, given.json, given.keep) else 1
    except doctor_peers.CannotCompare as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
