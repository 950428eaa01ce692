"""By what names this machine and its people go: what a report that leaves the machine must not tell."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpucheck.machine.host import text_of

ROOT = Path("/")
# Accounts of people begin here on the common distributions (UID_MIN of login.defs); 65534 is nobody's.
FIRST_PERSON, NOBODY = 1000, 65534
USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "LNAME", "SUDO_USER", "DOAS_USER")
HOST_VARIABLES = ("HOSTNAME", "HOST", "COMPUTERNAME", "NODENAME", "SLURMD_NODENAME")
HOME_VARIABLES = ("HOME", "USERPROFILE")
FOLDERS_OF_HOMES = ("home", "Users", "var/home", "export/home")


@dataclass(frozen=True, slots=True)
class Identity:
    """Names of the people with an account here, full names among them, of the machine and of its network.

    `home` is the home folder of the user who asks, `homes` every home folder that is known, with its owner's name.
    """

    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    home: str | None = None
    homes: Mapping[str, str] = field(default_factory=dict)


def read(root: Path = ROOT, environment: Mapping[str, str] | None = None) -> Identity:
    """The names as the accounts' file, the homes, the hosts' file and the variables (`os.environ`) tell them.

    A directory service is not asked for its list: it may be long and slow, and whoever has used this machine has a
    home folder on it.
    """
    variables = os.environ if environment is None else environment
    users: dict[str, None] = {}
    homes: dict[str, str] = {}
    for name, uid, full_name, home in _accounts(root):
        if FIRST_PERSON <= uid < NOBODY or uid == _uid():
            users |= dict.fromkeys(one for one in (name, full_name) if one)
            homes[home] = name
    users |= {variables[name]: None for name in USER_VARIABLES if variables.get(name)}
    users |= dict.fromkeys(_own_names())
    for folder in FOLDERS_OF_HOMES:
        for name in _folders(root / folder):
            users[name] = None
            homes.setdefault(f"/{folder}/{name}", name)
    own = next((variables[name] for name in HOME_VARIABLES if variables.get(name)), None)
    hosts = _hosts(root, variables)
    return Identity(tuple(users), hosts, _domains(root, hosts), own, homes)


def _accounts(root: Path) -> Iterator[tuple[str, int, str, str]]:
    """Name, number, full name and home of each account in /etc/passwd."""
    for line in text_of(root / "etc/passwd").splitlines():
        parts = line.split(":")
        if len(parts) >= 6 and parts[2].isdigit():
            yield parts[0], int(parts[2]), parts[4].partition(",")[0].strip(), parts[5].rstrip("/")


def _uid() -> int | None:
    return None if sys.platform == "win32" else os.getuid()


def _own_names() -> Iterator[str]:
    """The name of the user who asks and of the one who owns the current folder, from wherever the system has them."""
    if sys.platform == "win32":
        return
    import pwd

    with contextlib.suppress(KeyError):
        yield pwd.getpwuid(os.getuid()).pw_name
    with contextlib.suppress(KeyError, OSError):
        yield pwd.getpwuid(os.stat(".").st_uid).pw_name


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(one.name for one in folder.iterdir() if one.is_dir())
    except OSError:
        return []


def _hosts(root: Path, variables: Mapping[str, str]) -> tuple[str, ...]:
    """The machine's name, alone and with its domain."""
    own = [
        platform.node(),
        *text_of(root / "etc/hostname").splitlines(),
        *(variables.get(name, "") for name in HOST_VARIABLES),
    ]
    found: dict[str, None] = {}
    for name in filter(None, map(str.strip, own)):
        found |= {name: None, name.partition(".")[0]: None}
    for line in text_of(root / "etc/hosts").splitlines():
        names = line.partition("#")[0].split()[1:]
        if any(name in found or name.partition(".")[0] in found for name in names):
            found |= dict.fromkeys(names)
    return tuple(name for name in found if not name.startswith(("localhost", "ip6-")))


def _domains(root: Path, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The network's names: where a short name is looked up, and what follows the machine's own."""
    found = {name.partition(".")[2]: None for name in hosts}
    for line in text_of(root / "etc/resolv.conf").splitlines():
        words = line.split()
        if words[:1] in (["search"], ["domain"]):
            found |= dict.fromkeys(word.strip(".") for word in words[1:])
    return tuple(name for name in found if "." in name)
