"""The launcher's store: documents go through it whole, and what is wrong with one is said."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest
from tests.fleet.nodes import node

from gpucheck.cli.app import main
from gpucheck.errors import UsageError
from gpucheck.fleet import documents, store
from gpucheck.report.results.fleet import NodeDocument

TORCHRUN = {
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "4",
}


def test_the_store_of_torchrun() -> None:
    assert store.place(TORCHRUN, 2) == store.Place("n0", "29500", 1, 4, 2)
    assert store.place(TORCHRUN, 2).key(3) == "gpucheck/fleet/2/3"


@pytest.mark.parametrize("name", TORCHRUN)
def test_without_one_of_its_variables_there_is_none(name: str) -> None:
    with pytest.raises(UsageError, match="--store needs torchrun"):
        store.place({key: value for key, value in TORCHRUN.items() if key != name}, 0)


@pytest.mark.parametrize("gather", [(), ("--gather", "-")])
def test_it_needs_a_folder(gather: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "check", "--store", *gather]) == 2
    assert "--store needs a folder" in capsys.readouterr().err


def exchanged(folder: Path, left: dict[int, bytes], *, nodes: int, own: NodeDocument, left_s: float = 60.0) -> str:
    """What node 0 says once the others have left these bytes in a real store."""
    torch_distributed = pytest.importorskip("torch.distributed")
    timeout = timedelta(seconds=30)
    there = torch_distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    at = store.Place("127.0.0.1", str(there.port), 0, nodes, 0)
    for rank, line in left.items():
        there.set(at.key(rank), line)
    return store.exchange(at, own, folder, left_s)


@pytest.mark.slow
def test_node_0_writes_sound_documents_and_names_the_rest(tmp_path: Path) -> None:
    line = {name: documents.marked(node(name)).encode() for name in ("n0", "n1")}
    left = {
        1: line["n1"],
        2: line["n1"],
        3: line["n0"],
        4: documents.marked(node("n4", run="yesterday")).encode(),
        5: b"x" * (store.MOST_BYTES + 1),
        6: documents.MARK.encode() + b"A" * 40,
    }
    wrong = exchanged(tmp_path, left, nodes=7, own=node("n0"))
    assert [one.host for _, one in documents.read([str(tmp_path)]).documents] == ["n1"]
    for text in (
        "node 2: a second document of n1",
        "node 3: a second document of n0",
        "node 4: a document of another run",
        "node 5: larger than 64 KiB",
        "node 6: a marked line that is cut or changed",
    ):
        assert text in wrong


def test_who_did_not_come_is_named_where_slurm_has_the_names() -> None:
    came = {"n0.cluster", "n2"}
    assert store._missing(2, 4, came, {"SLURM_JOB_NODELIST": "n[0-3]"}).endswith("in the store: n1, n3")
    for environment in ({}, {"SLURM_JOB_NODELIST": "n[0-"}, {"SLURM_JOB_NODELIST": "m[0-3]"}):
        assert store._missing(2, 4, came, environment).endswith("in the store: all but n0.cluster, n2")


@pytest.mark.slow
def test_who_does_not_come_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LATE_S", 1.0)
    wrong = exchanged(tmp_path, {1: documents.marked(node("n1")).encode()}, nodes=4, own=node("n0"), left_s=0.0)
    assert wrong == "2 of 4 nodes left no document in the store: all but n0, n1"
    assert [one.host for _, one in documents.read([str(tmp_path)]).documents] == ["n1"]


@pytest.mark.slow
def test_a_store_that_is_gone_costs_its_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(store, "START_S", 3.0)
    wrong = store.exchange(store.Place("127.0.0.1", "9", 1, 2, 0), node("n1"), tmp_path, 0.0)
    assert "store could not be reached" in wrong and "3 s" in wrong


def test_a_document_that_is_too_large_stays_where_it_is(tmp_path: Path) -> None:
    import random

    chance = random.Random(1)
    settings = {str(number): "".join(map(chr, chance.choices(range(48, 123), k=200))) for number in range(600)}
    large = dataclasses.replace(node(), settings=settings)
    assert "it is in this node's folder only" in store.exchange(store.Place("x", "1", 1, 2, 0), large, tmp_path, 0.0)
