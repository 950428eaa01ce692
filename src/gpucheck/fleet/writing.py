"""The child that writes a node's document: whoever started it can give it up where the file system does not answer."""

from __future__ import annotations

import sys
from pathlib import Path

from gpucheck.errors import CannotLook
from gpucheck.fleet import documents
from gpucheck.machine import speaking


def main() -> int:
    """Write the document on stdin into the folder of the command line, and say what went wrong, if anything."""
    say = speaking.claim_stdout()
    try:
        documents.write(Path(sys.argv[1]), documents.of_line(sys.stdin.readline().encode()))
    except CannotLook as error:
        say({"wrong": error.why, "end": True})
    else:
        say({"wrong": "", "end": True})
    return 0
