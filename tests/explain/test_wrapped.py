"""What a logger, a launcher, a box, a quote or colours put around a text changes nothing of its answer."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import explain_corpus

from gpucheck.explain.command import OF_CONDITIONS, TEXTS
from gpucheck.explain.match import find

# As programs and services write them before each line.
PREFIXES = {
    "logging": "2025-11-23 10:11:12,345 - vllm.worker - WARNING - ",
    "logging by name": "WARNING:py.warnings:",
    "loguru": "2025-11-23 10:11:12.345 | ERROR    | vllm.engine.core:run:123 - ",
    "structlog": "2025-11-23 10:11:12 [error    ] ",
    "abseil": "E1123 10:11:12.345678  12345 worker.py:77] ",
    "vLLM's engine": "(EngineCore_DP0 pid=1234) ERROR 11-23 10:11:12 [core.py:708] ",
    "vLLM's worker": "(Worker_TP0 pid=1234) ",
    "vLLM": "ERROR 11-23 10:11:12 [multiproc_executor.py:597] ",
    "SGLang": "[2025-11-23 10:11:12 TP0] ",
    "Ray": "\x1b[36m(RayTrainWorker pid=1234, ip=10.0.0.1)\x1b[0m ",
    "torchrun": "[rank3]: ",
    "torchrun --tee": "[default3]:",
    "accelerate": "[RANK 0] ",
    "Lightning": "[rank: 1] ",
    "Hydra": "[2025-11-23 10:11:12,345][torch.cuda][WARNING] - ",
    "NeMo": "[NeMo W 2025-11-23 10:11:12 nemo_logging:349] ",
    "TensorRT-LLM": "[TensorRT-LLM][ERROR] ",
    "a name in brackets": "[ERROR] [torch.cuda] ",
    "ComfyUI": "[ComfyUI] ",
    "syslog": "Nov 23 10:11:12 node-1 python[1234]: ",
    "kubectl logs": "2025-11-23T10:11:12.345678901Z ",
    "containerd": "2025-11-23T10:11:12.345678901Z stderr F ",
    "compose": "vllm-1  | ",
    "compose, by name": "ollama  | ",
    "docker build": "#12 34.56 ",
    "srun --label": "3: ",
    "mpirun": "[1,3]<stderr>:",
    "GitHub Actions": "2025-11-23T10:11:12.3456789Z ##[error]",
    "GitLab": "2025-11-23T10:11:12.345678Z 00O ",
    "Windows": "11/23/2025 10:11:12 AM ERROR ",
    "seconds": "1763892672.123456 ",
    "pytest": "E   ",
    "a quote": "> ",
    "a quote in a quote": "> > ",
    "a box's side": "\u2502 ",
    "a list": "- ",
    "a comment": "# ",
    "code": "    ",
}


def _each(around: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(map(around, text.split("\n")))


def _framed(corners: str, line: str, side: str) -> Callable[[str], str]:
    def framed(text: str) -> str:
        inside = "\n".join(f"{side} {row} {side}" for row in text.split("\n"))
        return f"{corners[0]}{line * 40}{corners[1]}\n{inside}\n{corners[2]}{line * 40}{corners[3]}"

    return framed


WRAPPERS: dict[str, Callable[[str], str]] = {
    **{name: _each(prefix.__add__) for name, prefix in PREFIXES.items()},
    "JSON": _each(lambda line: json.dumps({"level": "error", "ts": "2025-11-23T10:11:12.345Z", "msg": line})),
    "logfmt": _each(lambda line: f"time=2025-11-23T10:11:12.345Z level=ERROR source=x.go:463 msg={json.dumps(line)}"),
    "a box": _framed("\u256d\u256e\u2570\u256f", "\u2500", "\u2502"),
    "a box of ASCII": _framed("++++", "-", "|"),
    "colours": _each(lambda line: f"\x1b[1;31m{line}\x1b[0m"),
    "colours without their escape": _each(lambda line: f"[31m{line}[0m"),
    "a fence": "```python\n{}\n```".format,
    "Windows's line ends": lambda text: text.replace("\n", "\r\n"),
    "a progress bar": lambda text: f"  3%|\u258e         | 30/1000 [00:10<05:23,  3.00it/s]{text}",
}


def answer(text: str) -> str | None:
    """The id of the first answer."""
    found = find(text, TEXTS, OF_CONDITIONS)
    return found[0].text.id if found else None


@functools.cache
def corpus() -> tuple[str, ...]:
    """The texts of the sets `tune` and `held`. In `fresh` one is answered only behind a prefix."""
    sets: tuple[explain_corpus.Set, ...] = ("tune", "held")
    return tuple(entry.text for name in sets for entry in explain_corpus.entries(name))


@functools.cache
def plain(number: int) -> str | None:
    """The answer to a text of the corpus as it stands."""
    return answer(corpus()[number])


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_is_around_a_text_changes_nothing(wrapper: str) -> None:
    """Each of the corpus' texts in one of the wrappers."""
    numbers = range(list(WRAPPERS).index(wrapper), len(corpus()), len(WRAPPERS))
    assert [number for number in numbers if answer(WRAPPERS[wrapper](corpus()[number])) != plain(number)] == []
