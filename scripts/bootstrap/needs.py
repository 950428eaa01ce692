"""What must be installed: read from the texts of pyproject.toml and constraints.txt, compared with what is there."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Sequence, Tuple

from .common import Trouble

Version = Tuple[int, ...]


def project_tables(pyproject: str) -> str:
    """The part of pyproject.toml that decides what is installed: without the tools' settings, the `[tool.` tables."""
    kept, keep = [], True
    for line in pyproject.splitlines():
        if line.startswith("["):
            keep = not line.lstrip("[").startswith("tool.")
        if keep:
            kept.append(line)
    return "\n".join(kept)


def requirements(pyproject: str, key: str) -> List[str]:
    """The strings of the list `key = [...]`. Reads the form our own pyproject.toml has, because tomllib came with
    Python 3.11; a test compares the two readings."""
    found = re.search(r"^" + re.escape(key) + r" = \[(.*?)\]$", project_tables(pyproject), re.MULTILINE | re.DOTALL)
    if not found:
        raise Trouble("pyproject.toml has no list named {}.".format(key))
    text = re.sub(r"#.*", "", found.group(1))
    return [double or single for double, single in re.findall(r"\"([^\"]+)\"|'([^']+)'", text)]


def name_of(requirement: str) -> str:
    """The distribution's name as names are compared: lower case, one `-` for every run of `-`, `_` and `.`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]).lower()


def release(version: str) -> Version:
    """The numbers a version begins with: "2.6.0a0+nv25.1" is (2, 6, 0). Enough to compare with a minimum."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^0-9.]", version, maxsplit=1)[0]))


def applies(requirement: str, python: Version) -> bool:
    """Whether the requirement is meant for this Python: the one kind of marker that pyproject.toml uses."""
    marker = re.search(r"python_version < \"(\d+)\.(\d+)\"", requirement)
    return not marker or python[:2] < tuple(map(int, marker.groups()))


def satisfied(requirement: str, installed: Mapping[str, str], python: Version, pins: Mapping[str, str]) -> bool:
    """Whether what is installed will do: the minimum or newer, or where no minimum is named, exactly the pin."""
    if not applies(requirement, python):
        return True
    version = installed.get(name_of(requirement))
    if version is None:
        return False
    minimum = re.search(r">=([\d.]+)", requirement)
    if minimum:
        return release(version) >= release(minimum.group(1))
    return version == pins.get(name_of(requirement))


def pins_of(constraints: str) -> Dict[str, str]:
    """{name: version} of the lines `name==version`; of a name pinned twice, for different Pythons, the first."""
    pins: Dict[str, str] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", constraints, re.MULTILINE):
        pins.setdefault(name_of(name), version)
    return pins


def constraints_beside(constraints: str, installed: Mapping[str, str], missing: Sequence[str]) -> str:
    """The constraints without the pins of what is there already and not among the `missing`: pip leaves that alone."""
    wanted = {name_of(requirement) for requirement in missing}
    kept = []
    for line in constraints.splitlines():
        if line.strip() and not line.startswith("#") and (name_of(line) not in installed or name_of(line) in wanted):
            kept.append(line + "\n")
    return "".join(kept)
