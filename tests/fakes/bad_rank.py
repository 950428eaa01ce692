"""A rank of `bench collective` with a fault: it computes wrongly, hangs, or dies in the first call of a collective."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch.distributed as dist

from gpucheck.bench.collective import rank


def main() -> int:
    """As `FAULT` says, from the call `AT` of all-reduce of more than one element on."""
    fault, at = os.environ["FAULT"], int(os.environ.get("AT", "1"))
    plain, calls = dist.all_reduce, 0

    def faulty(tensor: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += tensor.numel() > 1
        now = calls >= at and tensor.numel() > 1
        if now and fault == "hang":
            time.sleep(1000.0)
        if now and fault in ("SIGKILL", "SIGSEGV", "SIGSTOP"):
            os.kill(os.getpid(), getattr(signal, fault))
        if now and fault == "raise":
            raise RuntimeError("NCCL error in: a test, unhandled system error")
        if now and fault == "unsupported":
            raise NotImplementedError("gloo does not support it")
        done = plain(tensor, *arguments, **more)
        if now and fault == "wrong":
            tensor[3] += 1
        return done

    dist.all_reduce = faulty
    return rank.main()
