"""Give hostile files to `judge`, `compare`, `report`, `--baseline` and `fleet judge`; check the answers and their time.

    python benchmarks/hostile_files.py [--files N] [--seed S]

The benchmark makes N files (2 000) from a seed. Half of them are not documents: quotes, brackets, digits, broken bytes,
other encodings, parser bombs, and things that are not regular files. The other half are documents of `bench all` or of
a node in which a few values, keys or bytes are replaced by wrong ones. Each file goes to one command, in turn.
Bounds: a file takes at most 2 s of CPU time; it is refused with exit status 2 (error, tip, usage) or judged as a valid
document; and 256 KiB of quotes take at most three times as long as 256 KiB of numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import fleet_scale

from gpucheck.cli import app
from gpucheck.fleet import documents
from gpucheck.machine import saved

FILES = 2000
LONGEST_S = 2.0
SUFFIXES = ("md", "xml", "svg", "html", "prom")
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 0.0, -0.5, 2**70, 10**400, 1e308, 5e-324, float("inf"), float("nan"), [], {}, [[]], [1, 2, 3],
    {"a": {}}, "", "x", "9" * 401, "\ud800", "\x00", "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "=cmd|' /C calc'!A0",
    "[a](javascript:1)", "é" * 5000, "2026-13-45T99:99:99Z", "cuda:99", [{}], {"": None},
)  # fmt: skip

Make = Callable[[random.Random], bytes]


# -- no documents ------------------------------------------------------------------------------------------------------


def _repeated(*pieces: bytes) -> Make:
    """A piece again and again, up to the largest size that is read or a little more, behind a start."""

    def make(chance: random.Random) -> bytes:
        size = chance.choice((1, 100, 2**12, 2**18, 2**20, 2**22, saved.OF_REPORT.size_bytes + 1))
        start = chance.choice((b"", b'{"schema":', b'{"schema":"gpucheck.report/1","x":', b"[", b'"'))
        piece = b"".join(chance.choices(pieces, k=chance.randint(1, 4)))
        return start + piece * (size // len(piece))

    return make


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 3, 1000, 2**18)))


def _encoded(chance: random.Random) -> bytes:
    text = chance.choice(("{}", '{"schema": 1}', '{"schema": "gpucheck.report/1"}', "\ud800", "ÿ" * 999, "[" * 999))
    kind = chance.choice(("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-7"))
    return text.encode(kind, "surrogatepass" if kind != "utf-7" else "replace")[: chance.randint(1, 10**6)]


PIECES = (
    b'"', b"[", b"{", b"]", b"}", b",", b":", b"\\", b'\\"', b"9", b"-", b"0.", b"e9", b'"a":', b"1,", b"{},", b'{"a":',
    b"\\ud800", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\n", b" ", b"NaN,", b"null,", b"1e999,",
)  # fmt: skip
NO_DOCUMENTS: tuple[Make, ...] = (_repeated(*PIECES), _repeated(b'"'), _noise, _encoded)


# -- documents that somebody changed -----------------------------------------------------------------------------------


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every key and index of nested data, with what holds it."""
    left, seen = [data], set()
    while left:
        held = left.pop()
        if id(held) in seen:  # a value that was moved may lie within itself
            continue
        seen.add(id(held))
        for key, value in list(held.items()) if isinstance(held, dict) else enumerate(held):
            yield held, key
            if isinstance(value, (dict, list)):
                left.append(value)


def _changed(chance: random.Random, document: bytes) -> bytes:
    """The document with some values replaced, left out or moved."""
    data = json.loads(document)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 50))):
        held, key = chance.choice(list(_places(data)))
        what = chance.random()
        if what < 0.7:
            held[key] = chance.choice(ODD)
        elif what < 0.8:
            del held[key]
        elif what < 0.9:
            held[key] = [held[key]] * chance.choice((0, 2, 1000))
        else:
            other, place = chance.choice(list(_places(data)))
            if not isinstance(held[key], (dict, list)):
                other[place] = held[key]
    return json.dumps(data).encode()


def _broken(chance: random.Random, document: bytes) -> bytes:
    whole = bytearray(document)
    for _ in range(chance.choice((1, 5, 100))):
        whole[chance.randrange(len(whole))] = chance.randrange(256)
    return bytes(whole[: chance.choice((len(whole), chance.randrange(len(whole))))])


def _deep(chance: random.Random, document: bytes) -> bytes:
    depth = chance.choice((9, 33, 900, 50_000))
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return document.rstrip()[:-1] + b',"x":' + opening * depth + b"1" + closing * depth + b"}"


# -- the files, given to the commands ----------------------------------------------------------------------------------


def files(chance: random.Random, count: int, report: bytes, node: bytes, folder: Path) -> Iterator[tuple[str, str]]:
    """Paths of hostile files with the command that each is for; a file is there until the next is asked for."""
    special = folder / "pipe"
    os.mkfifo(special)
    others = ["/dev/zero", "/dev/tty", "/dev/full", str(special), str(folder), "/proc/self/mem", "/no/such", "x" * 300]
    commands = ("judge", "compare", "report", "fleet judge", "--baseline")
    for number in range(count):
        command = commands[number % len(commands)]
        if chance.random() < 0.04:
            yield command, chance.choice(others)
            continue
        path = folder / f"{number}.json"
        if chance.random() < 0.5:
            data = chance.choice(NO_DOCUMENTS)(chance)
        else:
            # What is still a document would be measured against: a process with torch for each.
            changes = (_broken, _deep) if command == "--baseline" else (_changed, _changed, _broken, _deep)
            data = chance.choice(changes)(chance, node if command == "fleet judge" else report)
        path.write_bytes(data)
        yield command, str(path)
        path.unlink()


def given(chance: random.Random, command: str, path: str, sound: str) -> list[str]:
    """The command line that has the file."""
    shown = chance.choice(
        (
            ["--json", "--quiet"],
            ["--verbose"],
            ["--output", str(Path(sound).with_name(f"out.{chance.choice(SUFFIXES)}")), "--quiet"],
        )
    )
    if command == "compare":
        return ["compare", *chance.choice(((sound, path), (path, sound))), *shown]
    if command == "report":
        return ["report", *chance.choice(((sound, path), (path,))), "--output", str(Path(sound).with_name("out.html"))]
    if command == "--baseline":
        return ["bench", "bandwidth", "--device", "cuda:99", "--runs", "1", "--baseline", path, "--json", "--quiet"]
    return [*command.split(), path, *shown]


def run(arguments: list[str]) -> tuple[int, str, float]:
    """The exit status, what was said on stderr, and the seconds of the processor."""
    said = io.StringIO()
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = app.main(arguments)
    return code, said.getvalue(), time.process_time() - began


def quotes_beside_numbers() -> float:
    """How many times as long 256 KiB of quotes take as 256 KiB of numbers, at their best of 20."""
    size = documents.MOST_BYTES - 2
    best = []
    for data in (b'"' * size, b"[" + b"1," * (size // 2 - 1) + b"1]"):
        times = []
        for _ in range(20):
            began = time.process_time()
            with contextlib.suppress(saved.InvalidFile):
                saved.parsed(data, saved.OF_REPORT)
            times.append(time.process_time() - began)
        best.append(min(times))
    return best[0] / best[1]


# One sentence of what is wrong, what to do, and the usage; long lines go on below, indented.
SAID = re.compile(r"error: .*(\n +.*)*\nusage: .*(\n +.*)*\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    codes: Counter[tuple[str, int]] = Counter()
    wrong, slowest = [], (0.0, "")
    with tempfile.TemporaryDirectory() as name:
        sound = str(Path(name, "sound.json"))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            app.main(["bench", "all", "--device", "cpu", "--time-budget", "5s", "--quiet", "--output", sound])
        node = documents.packed(fleet_scale.node(1, random.Random(1)))
        folder = Path(name, "files")
        folder.mkdir()
        for number, (command, path) in enumerate(files(chance, options.files, Path(sound).read_bytes(), node, folder)):
            code, said, took_s = run(given(chance, command, path, sound))
            codes[command, code] += 1
            slowest = max(slowest, (took_s, f"{number} {command}"))
            # What is still a document is judged, and its devices are not here (3).
            is_right = code in (0, 1, 3, 4) if code != 2 else bool(SAID.fullmatch(said))
            if not is_right or took_s > LONGEST_S:
                wrong.append(f"{number} {command}: {code} after {took_s:.1f} s: {said.strip()[-300:]}")
    for (command, code), count in sorted(codes.items()):
        print(f"{command}: {count} with exit status {code}")
    ratio = quotes_beside_numbers()
    print(f"longest: {slowest[0]:.2f} s of a processor ({slowest[1]}); quotes take {ratio:.1f} × as long as numbers")
    print("\n".join(wrong) if wrong else "no file was too slow or ended otherwise")
    return 1 if wrong or ratio > 3 else 0


if __name__ == "__main__":
    sys.exit(main())
