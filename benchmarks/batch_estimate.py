"""How near `find-batch-size --estimate` comes to what a search finds, on this CPU.

    PYTHONPATH=src python benchmarks/batch_estimate.py [--kept FILE] [--workload mlp]... [--memory-limit 1GiB]...

Each search tells what tensors without data alone had said of it (`prediction.uncalibrated_max_batch_size`), which is
what `--estimate --device cpu` tells of the same memory. Its answer over that is the ratio printed: the built-in models,
in training with AdamW and with SGD and in inference. The lowest and the highest are what an estimate for a CPU gives as
its error (`EXPERIENCE` in `src/gpucheck/batch_size/command.py`); `benchmarks/results/batch-estimate-cpu.jsonl` has the
searches that it was taken from. Exits 1 where a search ended without memory as its limit.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src"), str(Path(__file__).resolve().parent)]

import run_file  # noqa: E402  (found beside this file)
from batch_cases import CAP, WORKLOADS  # noqa: E402

from gpucheck import api  # noqa: E402

LIMITS = ("1GiB", "2GiB")
KINDS = (("train", "adamw"), ("train", "sgd"), ("infer", "adamw"))
TIME_BUDGET_S = 1800.0


def searched(workload: str, limit: str, mode: str, optimizer: str) -> dict[str, Any]:
    """One search, in what an estimate is held against."""
    found = api.find_batch_size(
        workload,
        mode=mode,
        optimizer=optimizer,
        memory_limit=limit,
        device="cpu",
        max_batch_size=CAP,
        time_budget_s=TIME_BUDGET_S,
    )
    return {
        "workload": workload,
        "limit": limit,
        "mode": mode,
        "optimizer": optimizer if mode == "train" else None,
        "estimated": found.answer["prediction"]["uncalibrated_max_batch_size"],
        "answer": found.max_batch_size,
        "limited_by": found.limited_by,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, help="keep each search in this file")
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--memory-limit", action="append")
    options = parser.parse_args()
    ratios, good = [], True
    for (mode, optimizer), limit, workload in itertools.product(
        KINDS, options.memory_limit or LIMITS, options.workload or WORKLOADS
    ):
        one = searched(workload, limit, mode, optimizer)
        if options.kept is not None:
            run_file.add(options.kept, one)
        how = f"{mode} {one['optimizer'] or ''}".rstrip()
        if one["limited_by"] != "memory" or not one["estimated"]:
            good = False
            print(f"none    {workload:12} {limit:5} {how:12} limited by {one['limited_by']}", flush=True)
            continue
        ratio = one["answer"] / one["estimated"]
        ratios.append(ratio)
        counts = f"{one['answer']} found, {one['estimated']} estimated"
        print(f"{ratio:6.3f}  {workload:12} {limit:5} {how:12} {counts}", flush=True)
    if ratios:
        print(f"\n{len(ratios)} searches: the answer is {min(ratios):.3f} to {max(ratios):.3f} of the estimate")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
