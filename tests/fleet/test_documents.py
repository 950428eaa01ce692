"""Documents: written whole, read as what anybody may have written."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shown import shown as on_screen
from tests.fleet.nodes import node

from gpucheck.errors import UsageError
from gpucheck.fleet import documents, hosts
from gpucheck.fleet.judge import judge
from gpucheck.machine import saved
from gpucheck.render import fleet as shown
from gpucheck.render import prometheus, text
from gpucheck.report.events import Answered, Judged
from gpucheck.report.report import Collector, Report
from gpucheck.report.report import document as as_json
from gpucheck.report.results.fleet import NodeProblem, RefusedFile

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX owners and links")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    whole = replace(node(), problems=(NodeProblem("smoke", "a.b", "warn", "tïtle", "text", None, "cuda:0"),))
    path = documents.write(tmp_path, whole)
    assert path.parent.parent == tmp_path and path.name.startswith("n1.")
    read = documents.read([str(tmp_path)])
    assert [*read.documents] == [whole]
    assert read.refused == ()
    assert [one.name for one in path.parent.iterdir()] == [path.name]  # no temporary file is left


def test_a_marked_line_is_read_back_from_a_log(tmp_path: Path) -> None:
    started = node(exit=None, step="smoke", written_monotonic_s=1.0)
    log = tmp_path / "job.log"
    lines = ["[rank0]: noise \x1b[31m", f"[n1] {documents.marked(node())}", f"0: {documents.marked(started)}",
             f"x {documents.marked(node('n2'))}", documents.marked(node("n3"))[:-30]]  # fmt: skip
    log.write_text("\n".join(lines), encoding="utf-8")
    read = documents.read([str(log)])
    assert [*read.documents] == [node(), node("n2")]
    assert [one.why for one in read.refused] == ["not all lines can be read: a marked line is cut or changed"]
    assert len(read.notices) == 1


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        documents.read([str(tmp_path / "none")])
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        documents.write(tmp_path / "file", node())


@posix
def test_links_pipes_and_other_owners_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = documents.write(tmp_path / "elsewhere", node())
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / elsewhere.name).symlink_to(elsewhere)
    os.mkfifo(folder / "pipe.json")
    read = documents.read([str(folder)])
    assert read.documents == ()
    assert sorted(one.why for one in read.refused) == ["a symbolic link", "no regular file"]
    monkeypatch.setattr(documents, "_trusted", lambda folder: frozenset((12345,)))
    (refused,) = documents.read([str(tmp_path / "elsewhere")]).refused
    assert refused.why.startswith("forged? its owner is user")


@posix
def test_absurd_counts_and_endless_input_are_refused(tmp_path: Path) -> None:
    """Nine documents that expected 2**62 nodes made 200 000 rows."""
    absurd: tuple[dict[str, Any], ...] = ({"expected": 2**62}, {"expected": -1}, {"gpus": 2**40}, {"attempt": 2**50})
    for changed in absurd:
        documents.write(tmp_path, node(**changed))
        (refused,) = documents.read([str(tmp_path)]).refused
        assert "which no cluster has" in refused.why
    with open("/dev/zero", "rb") as zero:
        saved_stdin = os.dup(0)
        try:
            os.dup2(zero.fileno(), 0)
            (refused,) = documents.read(["-"]).refused
        finally:
            os.dup2(saved_stdin, 0)
            os.close(saved_stdin)
        assert refused.why == "no regular file"
    large = tmp_path / "large.log"
    with open(large, "wb") as file:
        file.truncate(documents.MOST_LOG + 1)
    assert documents.read([str(large)]).refused[0].why == "larger than 4 GiB"


def test_a_platform_without_owners_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents.write(tmp_path, node())
    monkeypatch.setattr(documents, "_trusted", lambda folder: None)
    read = documents.read([str(tmp_path)])
    assert len(read.documents) == 1
    assert "does not report file owners" in read.notices[0]


@pytest.mark.parametrize("where", ["name", "shard"])
def test_a_document_of_another_node_is_forged(tmp_path: Path, where: str) -> None:
    path = documents.write(tmp_path, node())
    other = path.with_name(path.name.replace("n1", "n2"))
    if where == "shard":
        (tmp_path / ("00" if path.parent.name != "00" else "01")).mkdir()
        other = tmp_path / ("00" if path.parent.name != "00" else "01") / path.name
    path.rename(other)
    read = documents.read([str(tmp_path)])
    assert read.documents == ()
    assert read.refused[0].why.startswith("forged?")


def test_what_is_being_written_is_no_document(tmp_path: Path) -> None:
    path = documents.write(tmp_path, node())
    path.with_name(".n1.123.abc.tmp").write_bytes(path.read_bytes()[:100])
    assert documents.read([str(tmp_path)]).refused == ()
    path.write_bytes(path.read_bytes()[:-100])
    assert documents.read([str(tmp_path)]).refused[0].why == "truncated, or not JSON"


def _nested(depth: int) -> bytes:
    return b'{"schema":"gpucheck.node/1","run":' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (_nested(100_000), "nested too deeply"),
        (b'{"a":"' + b"]" * 50 + b'","b":' + b"[" * 40 + b"]" * 40 + b"}", "nested too deeply"),
        (b'{"a":1,"a":2}', "duplicate key"),
        (b'{"a":NaN}', "NaN is not a JSON number"),
        (b" " * (documents.MOST_BYTES + 1), "larger than"),
        (b"[]", "not a document of a node"),
        (b"\xff\xfe", "not JSON"),
        (b'{"schema":"gpucheck.report/1"}', "not a document of a node"),
        (b"9" * 10_000, "truncated, or not JSON"),
    ],
)
def test_what_is_refused_before_anything_is_made_of_it(data: bytes, why: str) -> None:
    with pytest.raises(saved.InvalidFile, match=why):
        documents.parse(data)


def test_rates_next_to_0_are_refused_and_do_not_end_the_judge(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    none = [replace(node(f"n{n}"), figures=tuple(replace(f, rate=1e-320) for f in node().figures)) for n in range(6)]
    log.write_text("\n".join(map(documents.marked, [node("sound"), *none])), encoding="utf-8")
    read = documents.read([str(log)])
    assert [one.host for one in read.documents] == ["sound"]
    assert judge(read.documents).result.counts["good"] == 1


@pytest.mark.slow
def test_a_bomb_in_a_log_ends_at_a_documents_size(tmp_path: Path) -> None:
    import base64
    import zlib

    bomb = base64.b64encode(zlib.compress(b" " * 2**28, 9)).decode()
    (tmp_path / "x.log").write_text(f"{documents.MARK}{bomb}\n")
    assert documents.read([str(tmp_path / "x.log")]).refused[0].why.startswith("larger than")


# -- seeded attacks ----------------------------------------------------------------------------------------------------

TEXTS = (
    "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "n1\n; rm -rf /", "; rm -rf ~", "$(reboot)", "`id`", "-rf", "../../x",
    "\ud800", "\x00", "[bold red]x[/]", "| a | b |", "<script>alert(1)</script>", "=cmd|' /C calc'!A0", "", "é" * 5000,
    '"} 1\nfake_metric 1', "\u2028", "\x9b31m", "n0",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, 10**400, 1e308, -1e308, float("inf"), float("nan"), [], {}, [[]], {"a": {}}, "x", *TEXTS,
)  # fmt: skip

Attack = Callable[[random.Random, dict[str, Any]], bytes]


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Every key and index of nested data, with what holds it."""
    items = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    return [(data, key) for key, _ in items] + [place for _, value in items for place in _places(value)]


def _values(chance: random.Random, data: dict[str, Any]) -> bytes:
    for _ in range(chance.randint(1, 4)):
        held, key = chance.choice(_places(data))
        held[key] = chance.choice(ODD)
    return json.dumps(data).encode()


def _texts(chance: random.Random, data: dict[str, Any]) -> bytes:
    """Hostile text wherever text is allowed: such a document may well be read."""
    texts = [(held, key) for held, key in _places(data) if isinstance(held[key], str) and key not in ("schema", "run")]
    for held, key in chance.sample(texts, min(len(texts), 5)):
        held[key] = chance.choice(TEXTS)
    return json.dumps(data).encode()


def _rates(chance: random.Random, data: dict[str, Any]) -> bytes:
    for figure in data["figures"]:
        figure["rate"] *= chance.choice((1e-20, 1e-3, 0.5, 2.0, 1e10))
    return json.dumps(data).encode()


def _cut(chance: random.Random, data: dict[str, Any]) -> bytes:
    whole = json.dumps(data).encode()
    return whole[: chance.randrange(len(whole))]


def _bytes(chance: random.Random, data: dict[str, Any]) -> bytes:
    whole = bytearray(json.dumps(data).encode())
    for _ in range(chance.randint(1, 20)):
        whole[chance.randrange(len(whole))] = chance.randrange(256)
    return bytes(whole)


def _twice(chance: random.Random, data: dict[str, Any]) -> bytes:
    key = chance.choice(list(data))
    return json.dumps(data)[:-1].encode() + f',"{key}":{json.dumps(chance.choice(ODD[:8]))}}}'.encode()


def _deep(chance: random.Random, data: dict[str, Any]) -> bytes:
    depth = chance.choice((9, 100, 50_000))
    return json.dumps(data)[:-1].encode() + b',"x":' + b"[" * depth + b"]" * depth + b"}"


def _settings(chance: random.Random, data: dict[str, Any]) -> bytes:
    data["settings"] = {f"{chance.choice(TEXTS)}{number}": chance.choice(TEXTS) for number in range(200)}
    data["expected"] = chance.choice((0, 10**9, -5, 7))
    return json.dumps(data).encode()


ATTACKS: tuple[Attack, ...] = (_values, _texts, _rates, _cut, _bytes, _twice, _deep, _settings)


def _report(sound: list[Any], hostile: list[Any], refused: list[RefusedFile]) -> Report:
    judged = judge([*sound, *hostile], refused, run="tonight", max_bad=1.0)
    collector = Collector()
    collector(Answered("fleet_judge", judged.result))
    for one in judged.findings:
        collector(Judged(one))
    return collector.report(version="1", command="fleet judge", argv=(), started="", elapsed_s=1.0)


def _screen(report: Report) -> str:
    return "\n".join(on_screen(text.blocks(report, verbose=True), 80))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_three_thousand_hostile_documents(seed: int) -> None:
    """1 000 for each seed, in rounds of 25 beside 30 sound nodes: no traceback, no wrong verdict on a sound node, and
    no character in any output that a terminal, a shell or a metric's reader would obey."""
    chance = random.Random(seed)
    sound = [*(node(f"n{number}", devices=2) for number in range(30))]
    read = 0
    for number in range(40):
        hostile, refused = [], []
        for place in range(25):
            attack = chance.choice(ATTACKS)
            data = attack(chance, json.loads(documents.packed(node(f"evil{number}-{place}", devices=2))))
            try:
                document = documents.parse(data)
            except saved.InvalidFile as error:
                refused.append(RefusedFile(f"evil{place}.json", documents.clean(str(error))))
                continue
            # A file of another node's name is refused by its name before it gets here.
            if document.host.startswith("evil"):
                hostile.append(document)
        read += len(hostile)
        report = _report(sound, hostile, refused)
        fleet = report.results["fleet_judge"]
        states = {row.host: row.state for row in fleet.nodes}
        # Three or more that claim a thousand times the speed are a group of their own: beside it nobody is sure.
        seen = {states[one.host] for one in sound}
        assert seen == {"good"} or (seen == {"undecided"} and any(one.id == "fleet.modes" for one in report.findings))
        assert all(hosts.is_safe(name) for name in (*fleet.good, *fleet.bad))
        screen = _screen(report)
        for output in (
            screen,
            shown.listed(report, "good"),
            shown.listed(report, "bad"),
            prometheus.metrics(report),
            as_json(report),
        ):
            assert output.replace("\n", "").isprintable()
        metrics = prometheus.metrics(report).splitlines()
        assert all(one.startswith(("# ", "gpucheck_")) for one in metrics)
    assert 100 < read < 900  # both kinds came: those that are refused, and those that are judged
