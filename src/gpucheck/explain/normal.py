"""Text as people paste it, brought into one form: without colours, prefixes, boxes, quotes and line ends. Pure."""

from __future__ import annotations

import bisect
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from gpucheck.explain.pattern import QUOTES

Kind = Literal["exception", "plain", "frame", "quiet"]

# Colours and links of a terminal, also where the escape character itself was lost on the way.
_ESCAPES = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|(?:\x1b|\^\[|␛)\[[0-9;?]*[ -/]*[@-~]|\[\d{1,3}(?:;\d{1,3})*m")
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad\x00-\x08\x0e-\x1f\x7f]")
# The frames of rich's tracebacks and of exception groups.
_BOXES = re.compile("[\u2500-\u259f]|^\\s*[|+](?:[-+]+|\\s|$)|\\s\\|\\s*$")
_TIME = (
    r"(?:(?:(?:\d{4}[-/])?\d\d[-/]\d\d|\d\d?/\d\d?/\d{4})[T ,|]\s?)?"
    r"\d\d?:\d\d:\d\d(?:[.,]\d+)?(?: [AP]M)?(?:Z|[+-]\d\d:?\d\d)?"
)
# A bar of tqdm's, with what it counts; what was written right behind it stays.
_PROGRESS = re.compile(r"^.{0,80}?\d{1,3}%\|[^|]{0,120}\| *[\d.]+\w?/[\d.]+\w? \[[^\]]{0,80}\]")
# Lines that say nothing: a fence of Markdown's, and an empty line of a container's behind its name.
_EMPTY = re.compile(r"\s*(?:(?:`{3,}|~{3,})\w*|[\w.-]+ +\|)\s*$")
# What is left of an object of JSON behind its message.
_JSON_END = re.compile(r'"\s*(?:, ?"[^"]*": ?[^{}]*)?\}$')
_QUIET = "DEBUG|INFO|TRACE"
_LEVELS = _QUIET + "|WARNING|WARN|ERROR|CRITICAL|FATAL"
# What a log, a launcher or a mail program puts before a line. Each is taken away as often as it stands there.
_PREFIX = re.compile(
    "|".join(
        (
            r"(?:>\s?)+",  # a quoted mail
            r"E {2,}",  # pytest
            r"\[?" + _TIME + r"(?: [A-Z]{2}\d+)*\]?(?:\s*[-|:]\s|\s|$|(?=\[))",
            r"\[\s*\+?\d+\.\d{6}s?\]\s?",  # the kernel's log
            r"\[\w{3} +\w{3} +\d+ \d\d:\d\d:\d\d \d{4}\]\s?",  # dmesg -T
            r"[EWIF] [\w./-]+\.(?:cc|cpp|py):\d+\]\s?",  # TensorFlow, XLA
            # syslog: a host and who speaks; a runner of jobs puts the time alone
            r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d"
            r"(?: \S*[^\s:] [\w.-]+(?:\[\d+\])?: |\s+)",
            r"\[(?:rank|RANK|default|node|worker|host)(?:: ?|[ _-])?\d+\]:?\s?",  # torchrun, Lightning, accelerate
            r"\[NeMo [A-Z] [^\]]{0,100}\]\s?",
            r"\[(?:debug|info|warning|error|critical) *\]\s*",  # structlog
            r"[\w.<>]+:[\w.<>]+:\d+ -(?:\s|$)",  # loguru
            r"\[[\w-]+(?:\.[\w-]+)+\](?:\s|(?=\[)|$)",  # a logger's name in brackets
            r"\[(?!CUDA|HIP|NVML|NCCL)[A-Za-z][A-Za-z_-]{1,30}\](?:\s|(?=\[)|$)",  # a program's
            r"\d{10}\.\d{3,9}\s",  # seconds since 1970
            r"\d\d[OE]\+?(?: |$)",  # GitLab
            r'time=\S+ level=\w+ (?:source=\S+ )?msg="?',  # logfmt, as ollama writes it
            r'\{"[^{}]{0,300}?"(?:msg|message|log)": ?"',  # JSON, a line of a log in each object
            r"[-*•](?:\s+|$)(?=\S|$)",  # a list's
            r"#+(?:\s+|(?=[A-Z])|$)",  # a comment's
            r"\[\d+,\d+\]<std(?:out|err)>:\s?",  # mpirun --tag-output
            r"\(\w+ pid=\d+(?:, ip=[\d.]+)?\)\s?",  # ray
            r"\(pid=\d+(?:, ip=[\d.]+)?\)\s?",
            r"\d{1,4}:(?: +|$)",  # srun --label
            r"[\w.-]+-\d+\s+\|(?:\s|$)",  # docker compose
            r"[a-z][\w.-]{1,40} +\|(?:\s|$)(?!.* \| )",  # the same for a container that has a name
            r"#\d+ \d+\.\d+ ",  # docker build
            r"(?:stderr|stdout)(?: F)?:?\s",  # Kubernetes, accelerate
            r"\[?[EWIF]\d{3,4} \d\d:\d\d:\d\d(?:\.\d+)?(?: +\d+)?(?: [\w./<>-]+:\d+)?\]\s?",  # glog, c10d
            r"\[?(?:" + _LEVELS + r")\]?(?:\s*[-|]\s|:[\w.]+:|:?\s|(?=\[)|$)\s*",
            r"##\[\w+\]",  # GitHub Actions
            r"[\w.]+ - \[?(?:" + _LEVELS + r")\]? -(?:\s|$)",  # Python's logging
            r"\[[\w.-][\w/.-]*\.(?:py|cpp|cu|cc|h):\d+(?::\w+)?\]\s?(?:-(?:\s|$))?",
        )
    )
)
_QUIET_PREFIX = re.compile(rf"(?:[\w.]+ - )?\[?(?:{_QUIET})\b|\[?I\d{{3,4}} |I [\w./-]+\.(?:cc|cpp|py):")
# NCCL tells at this level what it tries and does not need: a plugin or a device that is not there.
_NCCL_INFO = re.compile(r"\bNCCL INFO\b")
# A drive of Windows: a backslash before an n is then a path and no line end.
_DRIVE = re.compile(r"\b[A-Za-z]:\\")
_PERCENT = re.compile(r"%(?:[2-7][0-9A-Fa-f]|0[AaDd9])")
# JSON's escapes of characters, such as \u0027 for a quote; control characters and halves of pairs stay.
_UNICODE = re.compile(r"\\u(00[2-9A-Fa-f][0-9A-Fa-f]|0[1-9A-Fa-f][0-9A-Fa-f]{2}|[1-9A-CE-Fa-ce-f][0-9A-Fa-f]{3})")
# No line has more prefixes than this; a line made of nothing else ends here too.
_MOST_PREFIXES = 8

_EXCEPTION = re.compile(
    r"terminate called|what\(\):|Exception:|"
    r"(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*(?:Error|Exception|Fault)|OutOfResources)\s*(?::|$)"
)
_FRAME = re.compile(r'File "[^"]*", line \d+|frame #\d+:|❱|\S+\.py:\d+ in |\d+ +[│|] (?! *#error)')
# What somebody typed at a prompt: it names things without their having failed.
_PROMPT = re.compile(
    r"(?:\([\w./ -]+\) ?)?(?:\$ |>>> |\.\.\. |In \[\d+\]: |PS [A-Z]:[^>]*> ?|[A-Z]:\\[^>:\"'`]*>|"
    r"\[?[\w.-]+@[\w.-]+[: ][^$#]{0,80}[$#] )"
)
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its number in the text as given, what is left of it, what it is, and to which traceback it belongs."""

    number: int
    text: str
    kind: Kind
    group: int


@dataclass(frozen=True, slots=True)
class Normal:
    """The text in one form: `solid` without spaces, `spaced` with single ones and line ends; `starts` is where lines
    begin in `solid`."""

    lines: tuple[Line, ...]
    solid: str
    spaced: str
    starts: tuple[int, ...]
    # In `spaced`, where each line that is not empty begins, and where the same character is in `solid`.
    spaced_starts: tuple[tuple[int, int], ...]

    def line_at(self, offset: int) -> Line:
        """The line to which a character of `solid` belongs."""
        return self.lines[max(bisect.bisect_right(self.starts, offset) - 1, 0)]

    def lines_of(self, start: int, end: int) -> tuple[Line, ...]:
        """The lines over which characters of `solid` reach."""
        first = max(bisect.bisect_right(self.starts, start) - 1, 0)
        return self.lines[first : max(bisect.bisect_left(self.starts, end), first + 1)]

    def solid_offset(self, offset: int) -> int:
        """Where a character of `spaced` stands in `solid`."""
        spaced, solid = self.spaced_starts[max(bisect.bisect_right(self.spaced_starts, (offset, offset)) - 1, 0)]
        before = self.spaced[spaced:offset]
        return solid + len(before) - before.count(" ") - before.count("\n")


def normalise(text: str) -> Normal:
    """Bring a text into the one form."""
    text = _ESCAPES.sub("", _unescaped(text))
    lines = _classed([(number, _bare(line)) for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1)])
    solids: list[str] = []
    spaceds: list[str] = []
    starts: list[int] = []
    spaced_starts: list[tuple[int, int]] = []
    at = spaced_at = 0
    for line in lines:
        words = _plain(line.text).split()
        solids.append("".join(words))
        starts.append(at)
        if words:
            spaceds.append(" ".join(words))
            spaced_starts.append((spaced_at, at))
            spaced_at += len(spaceds[-1]) + 1
        at += len(solids[-1])
    return Normal(tuple(lines), "".join(solids), "\n".join(spaceds), tuple(starts), tuple(spaced_starts))


def _unescaped(text: str) -> str:
    """Without what web pages, JSON and addresses put in place of characters; pasted twice, they do it twice."""
    for _ in range(2):
        text = html.unescape(text)
    if "%20" in text and len(_PERCENT.findall(text)) > 2:
        text = unquote(text)
    text = _UNICODE.sub(lambda code: chr(int(code[1], 16)), text)
    if not _DRIVE.search(text):
        text = text.replace("\\r\\n", "\n").replace("\\n", "\n").replace("\\t", " ")
    return text.replace('\\"', '"').replace("\\'", "'")


def _plain(text: str) -> str:
    return text.translate(_WITHOUT_QUOTES).lower()


_WITHOUT_QUOTES = str.maketrans("", "", QUOTES)


def _bare(line: str) -> tuple[str, bool]:
    """A line without what was put before it, or drawn around it, and whether it is no error: told as information, or
    typed at a prompt."""
    line = _INVISIBLE.sub("", line)
    if _EMPTY.match(line):
        return "", False
    line = _BOXES.sub(" ", _PROGRESS.sub("", line)).strip()
    if _PROMPT.match(line):
        return line, True
    quiet = False
    for _ in range(_MOST_PREFIXES):
        found = _PREFIX.match(line)
        if not found or not found.end():
            break
        quiet = quiet or _QUIET_PREFIX.match(found.group()) is not None
        line = line[found.end() :].lstrip()
        if found.group().startswith("{"):
            line = _JSON_END.sub("", line)
    return ("", True) if _NCCL_INFO.search(line) else (line, quiet)


def _classed(lines: Sequence[tuple[int, tuple[str, bool]]]) -> list[Line]:
    """Return what each line is. Tracebacks that are chained are one group; what follows a new one is the next."""
    found: list[Line] = []
    group, chained, frame_before = 0, False, False
    for number, (text, quiet) in lines:
        if text.startswith(_CHAINED):
            chained = True
        elif text.startswith(_TRACEBACK):
            group, chained = group if chained else group + 1, False
        is_frame = _FRAME.match(text) is not None
        found.append(Line(number, text, _kind(text, frame=is_frame or frame_before, quiet=quiet), group))
        # Under a line of a traceback stands the line of source that it names.
        frame_before = is_frame and text.startswith("File ")
    return found


def _kind(text: str, *, frame: bool, quiet: bool) -> Kind:
    if frame:
        return "frame"
    if _EXCEPTION.match(text):
        return "exception"
    # CMake's lines of what it found begin so.
    return "quiet" if quiet or text.startswith("-- ") else "plain"
