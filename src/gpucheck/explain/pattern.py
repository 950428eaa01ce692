"""The patterns of known texts: made fit for text that was wrapped anywhere, and as text for people to read. Pure.

A terminal wraps in the middle of a word and a mail program at a space, so neither text nor pattern keeps its spaces
here; quotes go too, which Markdown and JSON change. Both are in lower case.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

QUOTES = "'\"`´‘’“”"
# How much of a line a `.*` may skip: without line ends it would reach through the whole text.
_MOST = 200
_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??")
# A text that was cut is known by this much of a pattern that is plain words, and by no fewer characters of its own.
CUT_SHARE, CUT_CHARACTERS = 0.5, 14
# What programs of every kind print: the system's errors (strerror, strsignal), the loader's, the shell's, Python's and
# the compilers'. A text that was cut is known by what is left beside these.
_COMMON = (
    (
        "no such file or directory|no such process|no such device|permission denied|operation not permitted|"
        "operation not supported|input/output error|resource temporarily unavailable|cannot allocate memory|"
        "device or resource busy|file exists|not a directory|is a directory|invalid argument|too many open files|"
        "no space left on device|read-only file system|broken pipe|address already in use|"
        "cannot assign requested address|"
        "network is unreachable|connection reset by peer|connection refused|connection timed out|"
        "connection closed by peer|"
        "connection was likely closed|connection aborted|no route to host|host is down|timed out|file too short|"
        "protocol error|out of memory|not enough memory|core dumped|segmentation fault|bus error|illegal instruction|"
        "aborted|killed|terminated|cannot open shared object file|failed to map segment from shared object|"
        "undefined symbol|symbol lookup error|invalid elf header|wrong elf class|version not found|command not found|"
        "the specified module could not be found|the specified procedure could not be found|dll load failed|"
        "while importing|could not load library|no module named|cannot import name|has no attribute|object has no|"
        "most likely due to a circular import|is not defined|is not a package|not found|does not exist|not available|"
        "is not available|is not supported|not supported|not implemented|unable to open|cannot open|failed to open|"
        "failed to load|failed to initialize|could not be found|cannot be used|cannot be found|fatal error|"
        "internal error|"
        "internal assert failed|initialization error|initialization failed|unknown error|unexpected error|"
        "unspecified error|error code|exit code|exited with code|with exit code|returned non-zero exit status|"
        "exited unexpectedly|terminate called after throwing an instance of|traceback|most recent call last|"
        "exception|warning|runtimeerror|valueerror|importerror|modulenotfounderror|oserror|attributeerror|typeerror|"
        "assertionerror|notimplementederror|keyerror|indexerror|memoryerror|error|failed|"
        "oci runtime create failed|error response from daemon|environment variable is not set|"
        "in the current installation|on this machine|on your system|please|trying to|tried to allocate|"
        "unable to allocate|"
        "out of bounds|out of range|invalid value|wrong version|is too old|is not installed|not installed|"
        "in this system|package is deprecated|invalid device|cuda error|cuda driver error|hip error"
    )
    .replace(" ", "")
    .split("|")
)
# And one of these has to be in that: words of GPUs, of torch and of what stands beside them.
_PARTICULAR = re.compile(
    "cuda|cudnn|cublas|cusolver|cusparse|cufft|nccl|nvidia|nvml|nvrm|nvlink|gpu|torch|tensor|triton|nvrtc|ptx|"
    "sm_|xformers|flashattn|flashattention|bitsandbytes|dataloader|rocm|mps|xpu|kernelimage|illegalmemor|emoryaccess|"
    "misalignedaddress|launchfail|deviceside|capturing|thebus|findaneng|dtype|scalartype|sharedmemory|"
    "inductor|dynamo|scaled_dot|collective|watchdog|bf16|fp16|bfloat16|srcindex|kvcache|executionplan|cpuallocator|"
    "configurationargument|resourcehandle|unsupportedtoolchain|multinomial|forkedsub"
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern ready to be tried.

    `by_word` says that it is for the text with its spaces. `needs` is in every text that matches; empty where that is
    not plain. `head` and `tail` are how it begins and ends, in plain letters, for texts that were cut; empty where they
    are not plain.
    """

    regex: re.Pattern[str]
    by_word: bool
    needs: str
    head: str
    tail: str


@functools.cache
def compiled(source: str) -> Pattern:
    """`source` ready to be tried. Raises re.error for what is no regular expression."""
    by_word = r"\b" in source or "^" in source.replace("[^", "") or "$" in source
    parts = list(_tokens(source, by_word=by_word))
    runs = _runs(parts)
    regex = re.compile("".join(f"{text}{repeated}" for text, repeated in parts), re.DOTALL | re.MULTILINE)
    return Pattern(
        regex,
        by_word,
        needs=max((run for run, _, _ in runs), key=len, default=""),
        head=next((run for run, first, _ in runs if first), "") if not by_word else "",
        tail=next((run for run, _, last in runs if last), "") if not by_word else "",
    )


def _tokens(source: str, *, by_word: bool) -> list[tuple[str, str]]:
    """The pattern in parts, each with its quantifier; spaces and quotes left out."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(source):
        token = _token_at(source, at)
        at += len(token)
        repeated = _QUANTIFIER.match(source, at)
        at = repeated.end() if repeated else at
        if token in (" ", r"\ ", r"\s") or token.removeprefix("\\") in QUOTES:
            if by_word and token.removeprefix("\\") not in QUOTES:
                found.append((r"\s", "?"))
            continue
        found.append((_lower(token), _bounded(repeated.group()) if repeated else ""))
    return found


def _token_at(source: str, at: int) -> str:
    if source[at] == "\\":
        return source[at : at + 2]
    if source[at] == "[":
        end = source.index("]", at + (3 if source[at + 1] == "^" else 2))
        return source[at : end + 1]
    opened = re.compile(r"\((?:\?(?:<?[=!]|:|P<\w+>))?").match(source, at)
    return opened.group() if opened else source[at]


def _lower(token: str) -> str:
    """A letter in lower case; an escape such as \\S, and what opens a group, mean something else in lower case."""
    return token if token.startswith(("\\", "(")) else token.lower()


def _bounded(quantifier: str) -> str:
    """Repeated as often as before, but not without end."""
    if quantifier[0] in "*+":
        return f"{{{int(quantifier[0] == '+')},{_MOST}}}?"
    return quantifier


def _runs(parts: list[tuple[str, str]]) -> list[tuple[str, bool, bool]]:
    """The plain runs outside every group, each with whether it is the pattern's beginning and its end."""
    depth, run, began, runs = 0, "", True, []
    for number, (text, repeated) in enumerate(parts):
        plain = text[1:] if text[0] == "\\" and not text[1].isalnum() else text
        depth += text.startswith("(") - (text == ")")
        if text == "|" and depth == 0:
            return []
        if depth == 0 and not repeated and len(plain) == 1 and (text[0] == "\\" or text not in ".[]()|^$"):
            run, began = run + plain, began if run else number == 0
            continue
        runs.append((run, began, False))
        run = ""
    runs.append((run, began if run else False, True))
    return [one for one in runs if one[0]]


def is_cut(text: str, pattern: Pattern) -> bool:
    """Return whether the text, without spaces, ends in the midst of the pattern or begins there, in words of its
    own."""
    ends, begins = text[-_MOST:].rstrip(".…"), text[:_MOST].lstrip(".…")
    return _is_begun(ends, pattern.head) or _is_ended(begins, pattern.tail)


def _is_begun(text: str, run: str) -> bool:
    """Return whether the text ends with how `run` begins, and with enough of what is its own."""
    return any(text.endswith(run[:length]) and _is_own(run, slice(0, length)) for length in _lengths(run))


def _is_ended(text: str, run: str) -> bool:
    """Return whether the text begins with how `run` ends, and with enough of what is its own."""
    return any(text.startswith(run[-length:]) and _is_own(run, slice(-length, None)) for length in _lengths(run))


def _lengths(run: str) -> range:
    return range(max(CUT_CHARACTERS, round(CUT_SHARE * len(run))), len(run) + 1)


def _is_own(run: str, part: slice) -> bool:
    """Return whether a part of a run says enough that no other program says, and speaks of GPUs or torch there."""
    return sum(_own(run)[part]) >= CUT_CHARACTERS and _PARTICULAR.search(run[part]) is not None


@functools.cache
def _own(run: str) -> tuple[bool, ...]:
    """Which characters of a run are a letter or digit of no phrase that every program prints."""
    own = [letter.isalnum() for letter in run]
    for phrase in _COMMON:
        at = run.find(phrase)
        while at >= 0:
            own[at : at + len(phrase)] = [False] * len(phrase)
            at = run.find(phrase, at + 1)
    return tuple(own)


# Of a class of characters: what it stands for, by what is in it.
_ANYTHING = re.compile(r"^\^|\\w")
# Alternatives that are told one by one; of more, the first stands for all.
MOST = 8
# A number, until the whole text is there. Right behind a letter an N would read as a part of the word.
_NUMBER = "\0"
_IN_WORD = re.compile(rf"(?<=[A-Za-z]){_NUMBER}")
_SPACES = re.compile(r" {2,}| (?=[:.,])")


def readable(pattern: str, number: str = "") -> tuple[str, ...]:
    """The texts of a pattern's alternatives, a few at most; `number` is what the group of that name holds."""
    found = []
    for text in _Reader(pattern, number or _NUMBER).alternatives():
        plain = _SPACES.sub(lambda gap: " " if len(gap.group()) > 1 else "", text)
        plain = _IN_WORD.sub("0", plain).replace(_NUMBER, "N")
        found.append(re.sub("…{2,}", "…", plain).strip())
    return tuple(dict.fromkeys(found))


class _Reader:
    """Reads what the tables of texts use of regular expressions, from left to right."""

    def __init__(self, pattern: str, number: str) -> None:
        self._rest, self._number = pattern, number

    def alternatives(self) -> list[str]:
        """Up to the end of the pattern, or of the group that was begun."""
        texts, ended = [""], list[str]()
        while self._rest and not self._takes(r"\)"):
            if self._takes(r"\|"):
                ended, texts = ended + texts, [""]
            else:
                texts = _joined(texts, self._next())
        return ended + texts

    def _takes(self, expression: str) -> str | None:
        """Read on over what matches here; None where nothing does."""
        match = re.match(expression, self._rest, re.DOTALL)
        if match is None:
            return None
        self._rest = self._rest[match.end() :]
        return match.group()

    def _next(self) -> list[str]:
        """Return what one letter, class or group may be, with how often it comes."""
        is_group = False
        if self._takes(r"\\[bBAZ]|[\^$]"):
            return [""]
        if begun := self._takes(r"\((?:\?(?:[:=!]|<[=!]|P<\w+>))?"):
            is_group = True
            inner = self.alternatives()
            texts = [""] if begun[-1] in "=!" else [self._number] if begun.startswith("(?P") else inner
        elif letters := self._takes(r"\[\^?\]?(?:\\.|[^\]\\])*\]"):
            texts = [self._of_class(letters[1:-1])]
        else:
            one = self._takes(r"\\.|.") or ""
            texts = [{".": "…", r"\d": _NUMBER, r"\w": "…", r"\s": " ", r"\W": " ", r"\S": "…"}.get(one, one[-1:])]
        often = self._takes(r"(?:[?*+]|\{[\d,]+\})\??") or ""
        # What may be left out is left out where it is more than a letter.
        return [""] if is_group and often[:1] in ("?", "*") else texts

    def _of_class(self, letters: str) -> str:
        if _ANYTHING.search(letters):
            return "…"
        if r"\d" in letters or "0-9" in letters:
            return "…" if "." in letters else _NUMBER
        return "'" if "'" in letters else letters[0]


def _joined(texts: list[str], more: list[str]) -> list[str]:
    """Every text with each that may follow it, as long as these are few; else with the first of them."""
    more = more if len(texts) * len(more) <= MOST else more[:1]
    return [text + one for text in texts for one in more]
