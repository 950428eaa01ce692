"""Names of nodes and lists of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.errors import UsageError
from gpucheck.fleet import hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[001-003,7],login1", ("node001", "node002", "node003", "node7", "login1")),
        ("r[1-2]n[08-10]", ("r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10")),
        ("a.b-c_d", ("a.b-c_d",)),
        ("x[1,1-2]", ("x1", "x2")),
        ("gpu[9-10].cluster, b", ("gpu9.cluster", "gpu10.cluster", "b")),
    ],
)
def test_slurms_lists(text: str, names: tuple[str, ...]) -> None:
    assert hosts.expected(text) == names


@pytest.mark.parametrize(
    "text",
    ["", "node[", "node]", "node[2-1]", "node[a]", "n[1-999999999]", "a;rm -rf", "-rf", ".x", "a b", "n[[1]]", "$(x)",
     "n[1-100000][1-100000]", "0", "a\nb", "é"],
)  # fmt: skip
def test_what_is_no_list_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError):
        hosts.expected(text)


def test_a_number_and_a_hostfile(tmp_path: Path) -> None:
    assert hosts.expected("128") == 128
    file = tmp_path / "hosts"
    file.write_text("# rack 1\nnode1 slots=8\nnode2:8\n\nnode[3-4]\nnode1\n")
    assert hosts.expected(str(file)) == ("node1", "node2", "node3", "node4")
    file.write_text("node1\nnode2;rm -rf /\n")
    with pytest.raises(UsageError):
        hosts.expected(str(file))
    file.write_text("# nothing\n")
    with pytest.raises(UsageError, match="names no node"):
        hosts.expected(str(file))


@pytest.mark.parametrize("name", ["a\n", "a\nb", "-a", "a-", ".a", "", "a" * 254, "a/b", "a;rm", "a\u202eb", "ａ"])
def test_unsafe_names(name: str) -> None:
    assert not hosts.is_safe(name)


def test_a_list_is_as_long_as_it_is_and_comes_before_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [f"a-rather-long-name-of-a-node-{number}" for number in range(2000)]
    assert hosts.expected(",".join(many)) == tuple(many)
    ranges = "[" + ",".join(str(number) for number in range(0, 20_000, 2)) + "]"
    assert len(hosts.expected(f"n{ranges}")) == 10_000  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    for name in ("n[1-2]", "a,b", "c"):
        Path(name).write_text("other\n")
    assert hosts.expected("n[1-2]") == ("n1", "n2") and hosts.expected("a,b") == ("a", "b")
    assert hosts.expected("c") == ("other",)
    with pytest.raises(UsageError, match="is not a host name"):
        hosts.expected("x" * 300)
    with pytest.raises(UsageError, match="more than 8 brackets"):
        hosts.expected("n" + "[1]" * 3000)


def test_a_hostfile_of_powershell_and_what_is_no_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts.txt"
    for encoding in ("utf-16", "utf-8-sig"):
        file.write_text("node1\r\nnode2\r\n", encoding=encoding, newline="")
        assert hosts.expected(str(file)) == ("node1", "node2")
    for path, why in ((tmp_path, "a directory"), (tmp_path / "none", "No such file"), ("/dev/zero", "no regular file")):
        with pytest.raises(UsageError, match=why):
            hosts.expected(str(path))
