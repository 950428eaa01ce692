"""What every module of this package needs: where things are, and how trouble is told."""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
ENVIRONMENTS = os.path.join(ROOT, ".gpucheck-env")
WINDOWS = os.name == "nt"
OLDEST_PYTHON = (3, 10)  # requires-python in pyproject.toml; a test compares the two

# The exit codes of gpucheck itself for these cases; a test compares them with gpucheck.errors.
USAGE, COULD_NOT_PREPARE, INTERRUPTED, TERMINATED = 2, 3, 130, 143


class Trouble(Exception):
    """What a person must be told: one sentence, and the exit code that goes with it."""

    def __init__(self, sentence: str, code: int = COULD_NOT_PREPARE) -> None:
        super().__init__(sentence)
        self.code = code


class Terminated(BaseException):
    """SIGTERM has arrived: what is half-made must go before this process does."""


def say(text: str) -> None:
    """One line on stderr, in gpucheck's name."""
    print("gpucheck: " + text, file=sys.stderr, flush=True)
