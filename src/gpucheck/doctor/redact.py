"""Taking out of texts what tells whose machine it is, and every secret. Pure: names and variables are given.

What is taken out leaves a placeholder, the same for the same thing, so that rows still match: `<user-1>`, `<host-1>`,
`<secret-1>`, `<mail-1>`, `<address-1>` (IP), `<mac-1>`, `<serial-1>`, `<uuid-1>`, `GPU-1` and `MIG-1` for UUIDs of
devices, `~` for the home folder and `~<user-2>` for another's, `<$NAME>` for the value of a variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from gpucheck.doctor import redact_shapes
from gpucheck.doctor.redact_shapes import ADDRESSES, SHAPES, UUID, Shape
from gpucheck.machine.identity import Identity

KINDS: dict[str, str] = {
    "user": "names of people",
    "host": "names of machines and networks",
    "secret": "passwords, tokens and keys",
    "mail": "mail addresses",
    "address": "IP addresses",
    "mac": "hardware addresses",
    "serial": "serial numbers",
    "uuid": "other UUIDs",
    "GPU": "UUIDs of GPUs",
    "MIG": "UUIDs of MIG instances",
    "~": "home folders",
    "$": "values of variables that are not on the list",
}
_PLACEHOLDER = re.compile(
    r"(<(?:user|host|secret|mail|address|mac|serial|uuid)-\d+>|<\$\w+(?:\[\d+\])?>|\b(?:GPU|MIG)-\d{1,3}\b(?!-))"
)
_COUNTED = re.compile(rf"{_PLACEHOLDER.pattern}|((?<![\w/.~])~(?=[\\/<\"']|$))", re.MULTILINE)

_DEVICE = re.compile(rf"(?<![A-Za-z0-9])(GPU|MIG)-({UUID})(?![\w-])")
# A mask may name a device by the beginning of its UUID.
_SHORTENED = re.compile(r"(?<![A-Za-z0-9])(GPU|MIG)-(?=[0-9A-Fa-f-]*\d)([0-9A-Fa-f]{4}[0-9A-Fa-f-]{0,31})(?![\w-])")
_BARE_UUID = re.compile(rf"(?<![\w-]){UUID}(?![\w-])")

# A folder of homes and whose it is; a Windows name may have blanks, which only a separator ends.
_HOME = re.compile(
    r"(?P<folder>(?<![A-Za-z0-9])[A-Za-z]:[/\\]{1,4}(?i:users)[/\\]{1,4}|[/\\]{1,4}(?:home|homes|Users)[/\\]{1,4})"
    r"(?P<name>(?<=\\)[A-Za-z0-9_][^\\/:*?\"<>|\r\n]{0,60}?(?=\\)|[A-Za-z0-9_](?:[\w.@+-]{0,60}[\w-])?)"
)
# What stands in such a folder and is nobody's name.
_NOBODY = ("home", "homes", "users", "shared", "public", "default", "lost+found")
# The key of a card's serial number.
_SERIAL = "serial"
# A name of one or two letters is a part of too much else.
SHORTEST_NAME = 3
# A short value is a switch; what is called a secret may be shorter.
SHORTEST_VALUE, SHORTEST_SECRET = 6, 4
# `password: disabled` makes no secret of the word.
LONGEST_WORD = 12
_NUMBERS = re.compile(r"v?[\d.,:+-]+|v?\d+(?:\.\d+)+[-+.\w]{0,20}")
# What every system has: the files below these are evidence.
_SYSTEM = re.compile(
    r"/|/(?:usr|lib|lib32|lib64|bin|sbin|etc|dev|proc|sys)(?:/.*)?|/(?:var|opt|tmp|run|mnt|media|srv|home|root|Users)/?"
    r"|/(?:var|run|opt)/(?:tmp|lib|log|cache|run|lock|conda|nvidia)/?|[A-Za-z]:[\\/]*(?:Windows.*|Program Files.*)?"
)
# Of several variables with one value the first names it; these say least.
_LEAST = ("PATH", "PWD", "OLDPWD", "INIT_CWD")
# The command that was typed, as a shell leaves it: the interpreter, which its folder tells.
_NOT_ASKED = ("_",)


class Redactor:
    """Replaces in texts what must not leave the machine.

    `identity` are the machine's names, `environment` its variables, of which the values of `keep` may be told. `common`
    are words that texts have anyway: a user or a variable of such a name is replaced in paths alone. First `learn` all
    that is to be redacted, then `tree` and `text` do it: a name that stands in one path is then taken out everywhere.
    """

    def __init__(
        self,
        identity: Identity | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        keep: Collection[str] = (),
        common: Collection[str] = (),
    ) -> None:
        self._identity = identity or Identity()
        self._common = frozenset(word.lower() for word in common)
        self._numbers: dict[str, dict[str, str]] = {}
        self._users: dict[str, None] = {}
        self._secrets: dict[str, None] = {}
        self._serials: dict[str, None] = {}
        for name in self._identity.users:
            self._learn_user(name)
        self._homes = self._known_homes()
        self._home_patterns = [
            (re.compile(rf"(?<![\w/\\.~-]){re.escape(home)}(?![\w-]|\.\w)"), name) for home, name in self._homes.items()
        ]
        self._values = dict(self._told_by_variables(environment or {}, keep))
        for name, value in (environment or {}).items():
            self._learn_secrets(name, value)
        self._patterns: tuple[re.Pattern[str] | None, ...] | None = None

    # --- what is looked for -------------------------------------------------------------------------------------------

    def _known_homes(self) -> dict[str, str]:
        """Home folders and what stands for them, the longest first."""
        homes = dict(self._identity.homes)
        if self._identity.home:
            homes[self._identity.home.rstrip("/\\")] = ""
        own = {self._identity.home or "", "/root"}
        kept = {home: name for home, name in homes.items() if home in own or not _SYSTEM.fullmatch(home)}
        return dict(sorted(kept.items(), key=lambda row: -len(row[0])))

    def _told_by_variables(self, environment: Mapping[str, str], keep: Collection[str]) -> Iterator[tuple[str, str]]:
        """Values of variables, whole and entry by entry where it is a list of paths, and what stands for each."""
        names = {name.lower() for name in (*self._users, *self._identity.hosts, *self._identity.domains)}
        seen: set[str] = set()
        for name in sorted(environment, key=lambda name: (name in _LEAST, name)):
            if name in keep or name in _NOT_ASKED:
                continue
            value = environment[name].strip()
            entries = [part.strip() for part in value.split(os.pathsep)] if os.pathsep in value else []
            for place, part in enumerate([value, *entries]):
                part = part.rstrip("/\\") or part
                if part in seen or part.lower() in names or part in self._homes or not self._tells(name, part):
                    continue
                seen.add(part)
                yield part, f"<${name}[{place - 1}]>" if place else f"<${name}>"

    def _tells(self, name: str, value: str) -> bool:
        """Whether a value says something of its own, and is no switch, number or part of every system."""
        if value.lower() in self._common or _SYSTEM.fullmatch(value):
            return False
        if redact_shapes.is_secret_name(name):
            return len(value) >= SHORTEST_SECRET
        return len(value) >= SHORTEST_VALUE and not _NUMBERS.fullmatch(value)

    def _learn_user(self, name: str) -> None:
        if name and not name.isdigit() and name.lower() not in _NOBODY:
            self._users.setdefault(name.lower())

    def learn(self, value: Any) -> None:
        """Take note of names in paths, of devices' UUIDs and serial numbers, and of secrets that are called so once."""
        for name, text in _strings(value):
            for match in _HOME.finditer(text):
                if not _in_url(match):
                    self._learn_user(match["name"])
            for match in _DEVICE.finditer(text):
                self._device(match)
            if name == _SERIAL and len(text) >= SHORTEST_VALUE:
                self._serials.setdefault(text)
            self._learn_secrets(name, text)
        self._patterns = None

    def _learn_secrets(self, name: str, text: str) -> None:
        found = [match[match.lastgroup or 0] for match in _secrets_in(text)]
        # Of `name:password@` in an address the password may stand alone elsewhere.
        found += [word.partition(":")[2] for word in found if ":" in word and f"//{word}@" in text]
        if redact_shapes.is_secret_name(name):
            found.append(text)
        self._secrets |= dict.fromkeys(word for word in found if self._is_learnt(word) and word not in self._values)

    def _is_learnt(self, secret: str) -> bool:
        """Whether a secret is to be looked for wherever it stands: it is no word, number or path of everybody's."""
        if len(secret) < SHORTEST_VALUE or secret.lower() in self._common or _PLACEHOLDER.search(secret):
            return False
        is_word = secret.isalpha() and secret[1:].islower() and len(secret) < LONGEST_WORD
        return not (is_word or _NUMBERS.fullmatch(secret) or _SYSTEM.fullmatch(secret))

    # --- doing it -----------------------------------------------------------------------------------------------------

    def tree(self, value: Any, name: str = "") -> Any:
        """Plain data (what JSON holds) with every string in it redacted, keys too; `name` is its key."""
        if isinstance(value, str):
            if value and redact_shapes.is_secret_name(name):
                return value if _PLACEHOLDER.fullmatch(value) else self._numbered("secret", value)
            if value and name == _SERIAL and not _PLACEHOLDER.fullmatch(value):
                return self._numbered("serial", value)
            return self.text(value, is_version=redact_shapes.is_version_name(name))
        if isinstance(value, Mapping):
            inherited = name if redact_shapes.is_version_name(name) else ""
            return {self.text(key): self.tree(item, inherited or key) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.tree(item, name) for item in value]
        return value

    def text(self, text: str, *, is_version: bool = False) -> str:
        """A text redacted; `is_version` says that it holds versions, which may look like IP addresses."""
        values, secrets, serials, hosts, users = self._compiled()
        pieces = _PLACEHOLDER.split(text)
        pieces = _changed(pieces, lambda piece: self._without_secrets(piece, values, secrets))
        pieces = _replaced(pieces, serials, lambda match: self._numbered("serial", match[0]))
        for shape in SHAPES:
            if shape.kind != "secret":
                pieces = self._shaped(pieces, shape)
        pieces = _replaced(pieces, _DEVICE, self._device)
        pieces = _replaced(pieces, _SHORTENED, self._shortened)
        pieces = _replaced(pieces, _BARE_UUID, self._bare)
        for shape in () if is_version else ADDRESSES:
            pieces = self._shaped(pieces, shape)
        for known, name in self._home_patterns:
            pieces = _replaced(pieces, known, self._standing_for(name))
        pieces = _replaced(pieces, _HOME, self._home)
        pieces = _replaced(pieces, hosts, lambda match: self._numbered("host", match[0].lower()))
        pieces = _replaced(pieces, users, lambda match: self._numbered("user", match[0].lower()))
        return "".join(pieces)

    def _compiled(self) -> tuple[re.Pattern[str] | None, ...]:
        """The patterns of what is known by its letters: values, secrets, serial numbers, hosts and users."""
        if self._patterns is None:
            hosts = [name for name in (*self._identity.hosts, *self._identity.domains) if self._is_name(name)]
            users = [name for name in self._users if self._is_name(name)]
            self._patterns = (
                _literals(self._values),
                _literals(self._secrets),
                _literals(self._serials),
                # With its domain, known or not.
                _literals(hosts, re.IGNORECASE, after=r"(?:(?:\.[A-Za-z][A-Za-z0-9-]*){2,}(?![\w-]))?"),
                _literals(users, re.IGNORECASE),
            )
        return self._patterns

    def _is_name(self, name: str) -> bool:
        return len(name) >= SHORTEST_NAME and name.lower() not in self._common

    def _numbered(self, kind: str, found: str) -> str:
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(found, f"<{kind}-{len(numbers) + 1}>")

    def _without_secrets(self, piece: str, values: re.Pattern[str] | None, secrets: re.Pattern[str] | None) -> str:
        """Values of variables and secrets replaced together: one may be a part of the other, and the whole counts."""
        spans: list[tuple[int, int, str | None]] = []
        if values is not None:
            spans += [(*match.span(), self._values[match[0]]) for match in values.finditer(piece)]
        if secrets is not None:
            spans += [(*match.span(), None) for match in secrets.finditer(piece)]
        spans += [(*match.span(match.lastgroup or 0), None) for match in _secrets_in(piece)]
        made, at = [], 0
        for start, end, told in _joined(spans):
            made += [piece[at:start], told or self._numbered("secret", piece[start:end])]
            at = end
        return "".join([*made, piece[at:]])

    def _shaped(self, pieces: list[str], shape: Shape) -> list[str]:
        def replacement(match: re.Match[str]) -> str | None:
            if not shape.accept(match):
                return None
            start, end = match.span(match.lastgroup or 0)
            before, after = match.string[match.start() : start], match.string[end : match.end()]
            return before + self._numbered(shape.kind, match.string[start:end]) + after

        return _replaced(pieces, shape.pattern, replacement)

    def _device(self, match: re.Match[str]) -> str:
        numbers = self._numbers.setdefault(match[1], {})
        return numbers.setdefault(match[2].lower(), f"{match[1]}-{len(numbers) + 1}")

    def _shortened(self, match: re.Match[str]) -> str:
        """The placeholder of the one device whose UUID begins so, else one of its own."""
        known = {told for uuid, told in self._numbers.get(match[1], {}).items() if uuid.startswith(match[2].lower())}
        return known.pop() if len(known) == 1 else self._device(match)

    def _bare(self, match: re.Match[str]) -> str:
        """A UUID without its kind is a device's where a device has it: torch writes it so."""
        uuid = match[0].lower()
        devices = (self._numbers.get(kind, {}).get(uuid) for kind in ("GPU", "MIG"))
        return next((told for told in devices if told), None) or self._numbered("uuid", uuid)

    def _home_of(self, name: str) -> str:
        return f"~{self._numbered('user', name.lower())}" if name and name != self._owner() else "~"

    def _standing_for(self, name: str) -> Callable[[re.Match[str]], str]:
        return lambda _: self._home_of(name)

    def _owner(self) -> str | None:
        home = (self._identity.home or "").rstrip("/\\")
        return self._identity.homes.get(home) or re.split(r"[/\\]", home)[-1] or None

    def _home(self, match: re.Match[str]) -> str | None:
        """A home by its look: of a whole path the folder, of a longer one the name alone."""
        if _in_url(match):
            return None
        start = match.start()
        if start == 0 or re.match(r"[\w/\\.~-]", match.string[start - 1]) is None:
            return self._home_of(match["name"])
        return match["folder"] + self._numbered("user", match["name"].lower())


def counts(texts: Collection[str]) -> dict[str, tuple[int, int]]:
    """How many different things of each kind were replaced in the texts, and in how many places."""
    found: dict[str, list[str]] = {}
    for text in texts:
        for match in _COUNTED.finditer(text):
            word = match[0].lstrip("<")
            kind = word[0] if word[0] in "~$" else word.partition("-")[0]
            found.setdefault(kind, []).append(match[0])
    return {kind: (len(set(found[kind])), len(found[kind])) for kind in KINDS if kind in found}


def _literals(words: Collection[str], flags: int = 0, *, after: str = "") -> re.Pattern[str] | None:
    """A pattern of whole words, the longest first; None where there is no word. `_` separates words."""
    if not words:
        return None
    listed = "|".join(_whole(word) for word in sorted(words, key=lambda word: (-len(word), word)))
    return re.compile(f"(?:{listed}){after}", flags)


def _whole(word: str) -> str:
    before = r"(?<![A-Za-z0-9])" if word[0].isalnum() else ""
    after = r"(?![A-Za-z0-9])" if word[-1].isalnum() else ""
    return f"{before}{re.escape(word)}{after}"


def _changed(pieces: list[str], change: Callable[[str], str]) -> list[str]:
    """The pieces changed; every second one is a placeholder and stays, and what is new is split off."""
    made: list[str] = []
    for place, piece in enumerate(pieces):
        changed = piece if place % 2 else change(piece)
        made += [piece] if changed == piece else _PLACEHOLDER.split(changed)
    return made


def _replaced(
    pieces: list[str], pattern: re.Pattern[str] | None, replacement: Callable[[re.Match[str]], str | None]
) -> list[str]:
    """The pieces with what the pattern finds replaced; a replacement of None leaves what was found."""
    if pattern is None:
        return pieces

    def told(match: re.Match[str]) -> str:
        new = replacement(match)
        return match[0] if new is None else new

    return _changed(pieces, lambda piece: pattern.sub(told, piece))


def _joined(spans: list[tuple[int, int, str | None]]) -> Iterator[tuple[int, int, str | None]]:
    """Spans that do not overlap, in order: of one within another the outer, of two that cross both as one."""
    last: tuple[int, int, str | None] | None = None
    for start, end, told in sorted(spans, key=lambda span: (span[0], -span[1])):
        if last is None or start >= last[1]:
            if last is not None:
                yield last
            last = (start, end, told)
        elif end > last[1]:
            last = (last[0], end, None)
    if last is not None:
        yield last


def _secrets_in(text: str) -> Iterator[re.Match[str]]:
    """What looks like a secret; the secret itself is the last named group."""
    for shape in SHAPES:
        if shape.kind == "secret":
            yield from filter(shape.accept, shape.pattern.finditer(text))


def _in_url(match: re.Match[str]) -> bool:
    """Whether it stands in an address of the web, where /Users/ is no folder of homes."""
    # An address is not much longer before its path; the whole text before would take time.
    word = re.split(r"\s", match.string[max(0, match.start() - 200) : match.start()])[-1]
    return "://" in word and "file:" not in word


def _strings(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every text in plain data with the key that it stands under; the keys too."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield "", str(key)
            yield from _strings(item, str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item, name)
