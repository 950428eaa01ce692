from __future__ import annotations

import platform
from pathlib import Path

import pytest

from gpucheck.machine import identity

PASSWD = """root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
alice:x:1001:1001:Alice Smith,Room 7,,:/people/alice/:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
broken line
+::::::
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(platform, "node", lambda: "gpu7.corp.example")
    monkeypatch.setattr(identity, "_own_names", lambda: iter(("me",)))
    monkeypatch.setattr(identity, "_uid", lambda: 4711)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(PASSWD)
    (tmp_path / "etc/hosts").write_text(
        "127.0.0.1 localhost\n127.0.1.1 gpu7.lab.example gpu7 box # ours\n10.0.0.9 other.example\n"
    )
    (tmp_path / "etc/resolv.conf").write_text("nameserver 10.0.0.1\nsearch net.example. local\n")
    (tmp_path / "home/bob").mkdir(parents=True)
    (tmp_path / "home/a file").write_text("")
    return tmp_path


def test_people_are_those_with_an_account_a_home_or_a_variable(root: Path) -> None:
    found = identity.read(root, {"SUDO_USER": "carol", "USER": "me", "HOME": "/people/me"})
    assert found.users == ("alice", "Alice Smith", "me", "carol", "bob")
    assert found.home == "/people/me"
    assert found.homes == {"/people/alice": "alice", "/home/bob": "bob"}


def test_an_account_of_the_system_is_a_person_where_it_asks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_uid", lambda: 1)
    assert "daemon" in identity.read(root, {}).users


def test_the_machine_goes_by_all_of_its_names(root: Path) -> None:
    found = identity.read(root, {"HOSTNAME": "inner"})
    assert found.hosts == ("gpu7.corp.example", "gpu7", "inner", "gpu7.lab.example", "box")
    assert found.domains == ("corp.example", "lab.example", "net.example")


def test_a_system_without_those_files_has_the_names_of_its_variables(root: Path) -> None:
    found = identity.read(root / "nothing", {"USERNAME": "carol", "USERPROFILE": r"C:\Users\carol"})
    assert found.users == ("carol", "me")
    assert (found.home, found.hosts) == (r"C:\Users\carol", ("gpu7.corp.example", "gpu7"))
