"""Find the known texts in a paste, the root cause first. No I/O.

The paste and the patterns are normalised to one form: lower case, without colours, prefixes, boxes, quotes and line
ends. Spaces are removed too, because a terminal wraps within a word and a mail program at a space. Quotes are removed
because Markdown and JSON change them.
"""

from __future__ import annotations

import bisect
import functools
import html
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import unquote

from gpucheck import xid
from gpucheck.doctor.condition import CERTAINTIES, Certainty, Condition
from gpucheck.explain.advice import advise, proven
from gpucheck.explain.facts import Facts
from gpucheck.explain.facts import read as read_facts

QUOTES = "'\"`´‘’“”"
# The most characters that a `.*` may match. The text has no line ends, so without a limit it would match all of it.
_MOST = 200
_NUMBERS = re.compile(r"\((?:\d+\|)*\d+\)")
# Matches a part of a pattern (an escape, a class, the start of a group, or one character) and its quantifier.
_PART = re.compile(
    r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:<?[=!]|:|P<\w+>))?|.)((?:[*+?]|\{\d+(?:,\d*)?\})\??)?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern.

    `by_word` means that the pattern applies to the text with spaces. `needs` is a string that every match contains;
    empty if none is known. `any_number` is the source with any number in place of those listed; empty if it lists none.
    Patterns that differ only in their numbers share it, so that the text is searched once for all of them.
    """

    regex: re.Pattern[str]
    by_word: bool
    needs: str
    any_number: str


@functools.cache
def compiled(source: str, by_word: bool | None = None) -> Pattern:
    """Return the compiled pattern. If `by_word` is None, the form of `source` decides."""
    by_word = _is_by_word(source) if by_word is None else by_word
    parts = list(_tokens(source, by_word=by_word))
    regex = re.compile("".join(f"{text}{repeated}" for text, repeated in parts), re.DOTALL | re.MULTILINE)
    any_number = _NUMBERS.sub(r"(\\d+)", source)
    return Pattern(regex, by_word, max(_runs(parts), key=len), any_number if any_number != source else "")


@functools.cache
def alternatives(source: str) -> tuple[Pattern, ...]:
    """Return the compiled alternatives of a pattern. Each may need a string that the whole pattern does not need."""
    branches, depth = [""], 0
    for token, quantifier in _PART.findall(source):
        depth += token.startswith("(") - (token == ")")
        if token == "|" and depth == 0:
            branches.append("")
        else:
            branches[-1] += token + quantifier
    return tuple(compiled(branch, _is_by_word(source)) for branch in branches)


def _is_by_word(source: str) -> bool:
    return r"\b" in source or "^" in source.replace("[^", "") or "$" in source


def _tokens(source: str, *, by_word: bool) -> list[tuple[str, str]]:
    """Return the parts of a pattern, each with its quantifier, without spaces and quotes."""
    found: list[tuple[str, str]] = []
    for token, quantifier in _PART.findall(source):
        if token in (" ", r"\ ", r"\s") or token.removeprefix("\\") in QUOTES:
            if by_word and token.removeprefix("\\") not in QUOTES:
                found.append((r"\s", "?"))
            continue
        if quantifier.startswith(("*", "+")):  # the same minimum, with a limit
            quantifier = f"{{{int(quantifier[0] == '+')},{_MOST}}}?"
        # An escape such as \S, or the start of a group, has another meaning in lower case.
        found.append((token if token.startswith(("\\", "(")) else token.lower(), quantifier))
    return found


def _runs(parts: list[tuple[str, str]]) -> list[str]:
    """Return the runs of literal characters outside groups; some are empty."""
    depth, runs = 0, [""]
    for text, repeated in parts:
        plain = text[1:] if text[0] == "\\" and not text[1].isalnum() else text
        depth += text.startswith("(") - (text == ")")
        if text == "|" and depth == 0:
            return [""]
        if depth == 0 and not repeated and len(plain) == 1 and (text[0] == "\\" or text not in ".[]()|^$"):
            runs[-1] += plain
        else:
            runs.append("")
    return runs


Kind = Literal["exception", "plain", "frame", "quiet"]

# Colours and links of a terminal, even if the escape character itself was lost on the way.
_ESCAPES = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|(?:\x1b|\^\[|␛)\[[0-9;?]*[ -/]*[@-~]|\[\d{1,3}(?:;\d{1,3})*m")
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad\x00-\x08\x0e-\x1f\x7f]")
# The frames of rich's tracebacks and of exception groups.
_BOXES = re.compile("[\u2500-\u259f]|^\\s*[|+](?:[-+]+|\\s|$)|\\s\\|\\s*$")
_TIME = (
    r"(?:(?:(?:\d{4}[-/])?\d\d[-/]\d\d|\d\d?/\d\d?/\d{4})[T ,|]\s?)?"
    r"\d\d?:\d\d:\d\d(?:[.,]\d+)?(?: [AP]M)?(?:Z|[+-]\d\d:?\d\d)?"
)
# A progress bar of tqdm with its counts. Text directly after it is kept.
_PROGRESS = re.compile(r"^.{0,80}?\d{1,3}%\|[^|]{0,120}\| *[\d.]+\w?/[\d.]+\w? \[[^\]]{0,80}\]")
# Lines without content: a code fence of Markdown, and an empty line after a container's name.
_EMPTY = re.compile(r"\s*(?:(?:`{3,}|~{3,})\w*|[\w.-]+ +\|)\s*$")
# The rest of a JSON object after its message.
_JSON_END = re.compile(r'"\s*(?:, ?"[^"]*": ?[^{}]*)?\}$')
_QUIET = "DEBUG|INFO|TRACE"
_LEVELS = _QUIET + "|WARNING|WARN|ERROR|CRITICAL|FATAL"
# Prefixes that a log, a launcher or a mail program puts before a line. Each is removed as often as it occurs.
_PREFIX = re.compile(
    "|".join(
        (
            r"(?:>\s?)+",  # a quoted mail
            r"E {2,}",  # pytest
            r"\[?" + _TIME + r"(?: [A-Z]{2}\d+)*\]?(?:\s*[-|:]\s|\s|$|(?=\[))",
            r"\[\s*\+?\d+\.\d{6}s?\]\s?",  # the kernel's log
            r"\[\w{3} +\w{3} +\d+ \d\d:\d\d:\d\d \d{4}\]\s?",  # dmesg -T
            r"[EWIF] [\w./-]+\.(?:cc|cpp|py):\d+\]\s?",  # TensorFlow, XLA
            # syslog: the host and the program; a CI runner writes only the time
            r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d"
            r"(?: \S*[^\s:] [\w.-]+(?:\[\d+\])?: |\s+)",
            r"\[(?:rank|RANK|default|node|worker|host)(?:: ?|[ _-])?\d+\]:?\s?",  # torchrun, Lightning, accelerate
            r"\[NeMo [A-Z] [^\]]{0,100}\]\s?",
            r"\[(?:debug|info|warning|error|critical) *\]\s*",  # structlog
            r"[\w.<>]+:[\w.<>]+:\d+ -(?:\s|$)",  # loguru
            r"\[[\w-]+(?:\.[\w-]+)+\](?:\s|(?=\[)|$)",  # a logger's name in brackets
            r"\[(?!CUDA|HIP|NVML|NCCL)[A-Za-z][A-Za-z_-]{1,30}\](?:\s|(?=\[)|$)",  # a program's name in brackets
            r"\d{10}\.\d{3,9}\s",  # seconds since 1970
            r"\d\d[OE]\+?(?: |$)",  # GitLab
            r'time=\S+ level=\w+ (?:source=\S+ )?msg="?',  # logfmt, as ollama writes it
            r'\{"[^{}]{0,300}?"(?:msg|message|log)": ?"',  # JSON, one object per line of a log
            r"[-*•](?:\s+|$)(?=\S|$)",  # a list item
            r"#+(?:\s+|(?=[A-Z])|$)",  # a comment
            r"\[\d+,\d+\]<std(?:out|err)>:\s?",  # mpirun --tag-output
            r"\(\w+ pid=\d+(?:, ip=[\d.]+)?\)\s?",  # ray
            r"\(pid=\d+(?:, ip=[\d.]+)?\)\s?",
            r"\d{1,4}:(?: +|$)",  # srun --label
            r"[\w.-]+-\d+\s+\|(?:\s|$)",  # docker compose
            r"[a-z][\w.-]{1,40} +\|(?:\s|$)(?!.* \| )",  # docker compose, with a container name
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
# A Windows path. In such a text a backslash before an n belongs to a path, and is not an escaped line end.
_DRIVE = re.compile(r"\b[A-Za-z]:\\|\\(?:Lib\\)?site-packages\\")
_PERCENT = re.compile(r"%(?:[2-7][0-9A-Fa-f]|0[AaDd9])")
# JSON's escapes of characters, such as \u0027 for a quote; control characters and surrogates stay.
_UNICODE = re.compile(r"\\u(00[2-9A-Fa-f][0-9A-Fa-f]|0[1-9A-Fa-f][0-9A-Fa-f]{2}|[1-9A-CE-Fa-ce-f][0-9A-Fa-f]{3})")
# Python writes b before the quotes of bytes.
_BYTES = re.compile(r"(?<![\w'\"])b(?=['\"][A-Za-z])")
_PREFIX_WORD = re.compile(r"rank\W{0,2}\d+|[a-z]+")
# The parts of a line, ended at a space where there is one.
_PARTS = re.compile(r".{1,2000}(?:\s|$)|.{2000}")

_EXCEPTION = re.compile(
    r"terminate called|what\(\):|Exception:|"
    r"(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*(?:Error|Exception|Fault)|OutOfResources)\s*(?::|$)"
)
_FRAME = re.compile(
    r'File "[^"]*", line \d+|frame #\d+:|❱|\S+\.py:\d+ in |\d+ +[│|] (?! *#error)|'
    r"File \S+:\d+, in |-{2,}> ?\d+ |\d{1,5} {4,}\S"  # IPython's
)
# Text that somebody typed at a prompt. It may name an error that did not happen. People write answers after an arrow.
_PROMPT = re.compile(
    r"(?!.*\s(?:->|→|=>)\s)(?:\([\w./ -]+\) ?)?(?:\$ |>>> |\.\.\. (?![A-Z]\w*Error:)|In \[\d+\]: |PS [A-Z]:[^>]*> ?|"
    r"[A-Z]:\\[^>:\"'`]*>|\[?[\w.-]+@[\w.-]+[: ][^$#]{0,80}[$#] )"
)
_TRACEBACK = "Traceback (most recent call last)"
# A line of source code. Its text may never have been printed.
_SOURCE = re.compile(
    r"raise \w|assert [\w(]|(?:el)?if .*:$|def \w+\(|f[\"']|(?:\w+\.)*\w*(?:Error|Exception)\((?:f[\"']|$)|"
    r"(?:logger|logging|warnings)\.\w+\(|print\(|TORCH_(?:CHECK|WARN)\w*\("
)
_DIFF, _IN_DIFF = re.compile(r"diff --git |@@ -\d|--- a/"), re.compile(r"[-+@\\ ]|diff |index |$")
# A line that introduces a list of possible causes. The items of the list are guesses.
_GUESSES = re.compile(
    r"\b(?:possible|potential|likely|common|usual|some)(?: root)? (?:reason|cause|solution|fix)|\bone of the following|"
    r"\b(?:may|might|could|can) (?:be|have been) (?:caused by|due to|because)\b|"
    # the introduction of a list of things that were searched for and not found
    r"\b(?:no (?:\w+ )?(?:errors?|messages?|entries|signs?)\b|none of th|(?:did|do) ?(?:not|nt) see\b)[^.:]{0,60}:\W*$",
    re.IGNORECASE,
)
_ITEM = re.compile(r"\s*(?:[-*•]|\(?\d{1,2}[.):])\s+\S")
# Lines of environment reports: a package missing there is not an error of the program. NCCL also looks for InfiniBand's
# library at every start.
_ABSENT = re.compile(
    r"(?!.*(?:error|fail|found for))[\w .()/+-]{1,40}(?:: *|=+ *| {2,})"
    r"(?:module not (?:found|installed)|n/a|v?\d+\.\w+[\w.+-]*)\.?$|"
    r".*(?:open|load)\w* (?:shared library )?libibverbs|.*\bthis is not an? (?:failure|error)\b",
    re.IGNORECASE,
)
_FATAL = re.compile(r"Fatal Python error|core dumped")
_COLLECTOR = re.compile(r"\b(?:collect_env|check_env|env_report|ds_report|print_env)\w*\.py|bug_report\w*\.py")
# Lines that join a traceback to the one before. An exception that Python ignores at exit is not a separate error.
_CHAINED = (
    "The above exception was the direct cause",
    "During handling of the above exception",
    "Exception ignored in",
)
# Exceptions that only report the end of another process or connection.
_PASSED_ON = re.compile(r"\b(CalledProcess|Connection\w*|BrokenPipe|EOF|Cancelled)Error\b")


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its number, its text without prefixes, its kind, its group of tracebacks, and the form of its prefix."""

    number: int
    text: str
    kind: Kind
    group: int
    prefix: str


@dataclass(frozen=True, slots=True)
class Normal:
    """The normalised text: `solid` has no spaces; `spaced` has single spaces and line ends; `starts` has each line's
    offset in `solid`."""

    lines: tuple[Line, ...]
    solid: str
    spaced: str
    starts: tuple[int, ...]
    # For each line that is not empty, its offset in `spaced` and its offset in `solid`.
    spaced_starts: tuple[tuple[int, int], ...]

    def lines_of(self, start: int, end: int) -> tuple[Line, ...]:
        """Return the lines that this range of `solid` covers."""
        first = max(bisect.bisect_right(self.starts, start) - 1, 0)
        return self.lines[first : max(bisect.bisect_left(self.starts, end), first + 1)]

    def solid_offset(self, offset: int) -> int:
        """Return the offset in `solid` of a character in `spaced`."""
        spaced, solid = self.spaced_starts[max(bisect.bisect_right(self.spaced_starts, (offset, offset)) - 1, 0)]
        before = self.spaced[spaced:offset]
        return solid + len(before) - before.count(" ") - before.count("\n")


def normalise(text: str) -> Normal:
    """Return the normalised text."""
    text = _ESCAPES.sub("", _unescaped(text))
    given = _numbered(text)
    lines = _classed([(number, _bare(line)) for number, line in given], _quoted(given))
    words = [line.text.translate(_WITHOUT_QUOTES).lower().split() for line in lines]
    solids = ["".join(parts) for parts in words]
    starts = tuple(itertools.accumulate(map(len, solids), initial=0))[:-1]
    filled = [(" ".join(parts), start) for parts, start in zip(words, starts, strict=True) if parts]
    offsets = itertools.accumulate((len(spaced) + 1 for spaced, _ in filled), initial=0)
    spaced_starts = tuple((offset, start) for offset, (_, start) in zip(offsets, filled, strict=False))
    return Normal(tuple(lines), "".join(solids), "\n".join(spaced for spaced, _ in filled), starts, spaced_starts)


def _numbered(text: str) -> list[tuple[int, str]]:
    """Return the lines with their numbers. Very long lines are split, because every search reads the whole line."""
    lines = re.split(r"\r\n|\r|\n", text)
    return [(number, part) for number, line in enumerate(lines, 1) for part in _PARTS.findall(line) or ("",)]


def _unescaped(text: str) -> str:
    """Return the text without the escapes of JSON, URLs and HTML. A text pasted twice has HTML's escapes twice."""
    text = html.unescape(html.unescape(text))
    if "%20" in text and len(_PERCENT.findall(text)) > 2:
        text = unquote(text)
    text = _UNICODE.sub(lambda code: chr(int(code[1], 16)), text)
    if not _DRIVE.search(text):
        text = text.replace("\\r\\n", "\n").replace("\\n", "\n").replace("\\t", " ")
    return _BYTES.sub("", text.replace('\\"', '"').replace("\\'", "'"))


_WITHOUT_QUOTES = str.maketrans("", "", QUOTES)


def _bare(line: str) -> tuple[str, bool, str]:
    """Return a line's text without its prefixes and boxes, whether the line is quiet (information, or typed at a
    prompt), and the words of its prefixes with a rank's number."""
    line = _INVISIBLE.sub("", line)
    if _EMPTY.match(line):
        return "", False, ""
    line = _BOXES.sub(" ", _PROGRESS.sub("", line)).strip()
    if _PROMPT.match(line):
        return line, True, ""
    quiet, prefix = False, ""
    for _ in range(8):  # no line has more prefixes
        found = _PREFIX.match(line)
        if not found or not found.end():
            break
        quiet = quiet or _QUIET_PREFIX.match(found.group()) is not None
        prefix += "".join(_PREFIX_WORD.findall(found.group().lower()))
        line = line[found.end() :].lstrip()
        if found.group().startswith("{"):
            line = _JSON_END.sub("", line)
    # At this level NCCL reports what it tries but does not need, such as a plugin or a device that is missing.
    return ("", True, prefix) if "NCCL INFO" in line else (line, quiet, prefix)


def _quoted(given: Sequence[tuple[int, str]]) -> set[int]:
    """Return the numbers of lines that report no error, because they belong to a diff or to a list of guesses."""
    quoted: set[int] = set()
    in_diff = in_list = False
    for number, line in given:
        in_diff = _DIFF.match(line) is not None or (in_diff and _IN_DIFF.match(line) is not None and bool(line))
        is_item = _ITEM.match(line) is not None
        if in_diff or (in_list and is_item):
            quoted.add(number)
        # A line with a list mark never begins a list of guesses, because some launchers mark every line.
        in_list = (in_list and (is_item or not line.strip())) or (not is_item and _GUESSES.search(line) is not None)
    return quoted


def _classed(lines: Sequence[tuple[int, tuple[str, bool, str]]], quoted: Collection[int]) -> list[Line]:
    """Return the lines with their kinds and groups. Chained tracebacks form one group."""
    found: list[Line] = []
    group, chained, frame_before = 0, False, False
    for number, (text, quiet, prefix) in lines:
        if text.startswith(_CHAINED):
            chained = True
        elif text.startswith(_TRACEBACK):
            group, chained = group if chained else group + 1, False
        is_frame = _FRAME.match(text) is not None or _SOURCE.match(text) is not None
        # Python shows no source for code that was typed or given by -c, so the exception follows its frame directly.
        is_raised = _EXCEPTION.match(text) is not None
        kind: Kind = "exception" if is_raised else "frame" if is_frame or frame_before else "plain"
        # CMake's lines about what it found begin with `-- `. pip's line about a build, and comments, are no errors.
        quiet = quiet or text.startswith(("-- ", "Building wheel", "//", "/*", "*/")) or _ABSENT.match(text) is not None
        kind = "quiet" if number in quoted or (kind == "plain" and quiet) else kind
        found.append(Line(number, text, kind, group, prefix))
        # In a traceback, the line of source follows the line that names the file.
        frame_before = is_frame and text.startswith("File ")
    return _without_reports(found)


def _without_reports(lines: Sequence[Line]) -> list[Line]:
    """Return the lines. Tracebacks of programs that report the environment are `quiet` if there is another error."""
    collecting: set[Line] = set()
    for begin in (at for at, line in enumerate(lines) if line.text.startswith(_TRACEBACK)):
        # The exception is below the frames, and below the marks that Python puts under their source.
        below = (at for at in range(begin + 1, len(lines)) if lines[at].kind != "frame" and lines[at].text.strip("^~ "))
        traceback = lines[begin : next(below, len(lines)) + 1]
        collecting.update(traceback if any(_COLLECTOR.search(line.text) for line in traceback) else ())
    others = (line for line in lines if line not in collecting)
    if not any(line.kind == "exception" or _FATAL.search(line.text) for line in others):
        return list(lines)
    return [replace(line, kind="quiet") if line in collecting else line for line in lines]


# A pattern with more matches in a log than this says nothing new. Only its first and last matches are used.
_MOST_PLACES = 100
# A line that people read has at most about this many characters, without spaces.
_SAME_LINE = 500
# The ranges that a pattern matches, by the number in the match; "" has all, because `xid.unknown` takes any number.
_Spans = dict[str, list[tuple[int, int]]]
# The rank of each kind of line as evidence: the exception that ends a traceback, a line of a log, a line of source.
_WEIGHT: dict[Kind, int] = {"exception": 0, "plain": 1, "frame": 2, "quiet": 3}
# Words about GPUs and the libraries that use them. Without one, messages that any program may print do not count.
_OURS = re.compile(
    r"torch|cuda|cudnn|nvidia|nvrm|nvlink|\bgsp\b|nccl|\bgpus?\b(?! ?process)|\btriton|dataloader|deepspeed|vllm|"
    r"sglang|\brocm|amdgpu|xformers|diffusers|transformers|safetensors|huggingface|lightning[._]|megatron|tensorflow|"
    r"\bjax|(?<!\bo)llama|checkpoint shards|\bepoch\b.{0,9}\d|\b([hb][123]00|a100|gb10|gb[23]00|l40s?|mi[23]\d\dx?)\b|"
    r"\b[rg]tx ?(pro ?)?\d{3,4}|\bgfx\d{3,4}|\bblackwell\b|\bsm_?1[012]\d\b|flash[-_]?infer|flash[-_]?att|llama\.cpp|"
    r"\bollama\b(?! *\| )|\bggml|comfyui|\b(unsloth|axolotl|peft|ultralytics|yolov?\d\w*|mmcv|detectron2?|ctranslate2|"
    r"vram|fooocus|invokeai|onnxruntime|gguf|exllama\w*|stable[- ]diffusion|automatic1111|whisper\w*|ko(?:hya|bold)\w*|"
    r"geforce|radeon)\b|\bisaac\w*|\btensorrt|"
    r"\b\d0[5-9]0 ?ti\b|\[10de:|cpp_extension|train_loss|\btraining failed\b|singularity\.d|\blnksta\b|"
    r"\.(pth|gguf)\b|nnunet|horovod|fsdp|directml|\blora training|\bcu1[0-3]\d\b|"
    r"python[\d.]*,? (-u,? )?[\w./-]*(train|infer|finetun|pretrain|eval)\w*\.py"
)
# Messages of programs that continue without a GPU or a package. They are no error if the paste has another error.
_GOES_ON = re.compile(
    r"will not be used|(default(ing|s)?|fall(ing|s)? ?back|switching|reverting) to (the )?(cpu|eager|slow|python|"
    r"native|math)|(using|running on|use) (the )?(cpu(?! as a fall)|slow)|on (the )?cpu instead|skipping registering|"
    r"much faster with|deprecat|not compiled to use|enable the following instr|failed to load image python extension|"
    r"rebuild tensorflow|could not load dynamic library|ignore above cudart|cannot dlopen some|was not compiled with "
    r"flash|without specifying a torch dtype|unable to register (cudnn|cublas|cufft)|proceeding without|"
    r"\b(retrying|will retry|skipping step)\b|hit config\.(recompile|cache_size)_limit",
    re.IGNORECASE,
)
# Messages about a harmless condition. They are information, whatever else the paste has.
_HARMLESS = re.compile(
    r"\b(xformers|(flash|sage) attn) is not installed!|\ballreduce is disabled\b|accepting this combination|shouldn'?t "
    r"be a problem|userwarning: failed to initialize numpy|errno: 97\b|failed to mu?n?lock\b|\bmunlock failed\b|"
    r"\bloopback address as "
    "fallback",
    re.IGNORECASE,
)
# Words before an error that a sentence only mentions: the sentence denies it, warns of it or asks about it.
_DENIED = re.compile(
    r"\b(no|never|without|neither|nor)( (a|an|any|such|more|single))?( \w+){0,2}( errors?:)?$|\b(no|without)( \w+,)+$|"
    r"\b(is|was|are|were|do|"
    r"does|did|have|has)( not|nt)( a| an| any| due to| caused by| related to| about| get| see| the)*( \w+){0,2}$|\b(if|"
    r"in case) (you|your|there|of)\b[^.:;]{0,50}$|\b(avoid|prevent)(ing|s)?( \w+){0,3}$|\b(may|might|could|can|would)( "
    r"also)? (cause|lead to|result in|trigger|run into)( \w+){0,2}$|\b(not|isnt|wasnt|never) (an?|the|about the)? "
    r"?(issue|problem|question|matter|case)( with| of| about)?( an?| the)?( \w+)?$|\b(docs?|documentation|readme|"
    r"manual|page|comment|source|code) (says?|states?|mentions?|claims?)( that)?( \w+)?$|\b(no|any|without) (sign|"
    r"evidence|trace|indication|hint)s?( of)?( an?| any)?( \w+)?$|\b(rul(e|ed|es|ing) out|exclud(ed|es|ing)|unrelated "
    r"to|nothing to do with|rather than)( \w+){0,2}$"
)
# Words before an error that an exception only warns of.
_HEDGED = re.compile(r"\b(may|might|could|can|would) (also )?(cause|lead to|result in|trigger)( \w+){0,5}$")
_DENIED_AFTER = re.compile(
    r"^( errors?| problems?)? ((never|no longer|(do|does|did)( not|nt)) (happen|occur|appear|show|come)|"
    r"(is|was|are) (gone|fixed|solved|ruled out|excluded|unlikely|not the (issue|problem|cause|case|reason)))"
)
# Words of a discussion that is solved, or about a pull request. Its texts do not count, unless a program's output is in
# it.
_SETTLED = re.compile(
    r"\b(re)?solved ?:|\[(re)?solved\]|\b(works?|working|runs) (fine )?(now|again)\b|\b(that|this|it|which) (has )?"
    r"(fixed|solved|resolved) (it|this|that|the (issue|problem))\b|\b(this|the) (pr|patch) \w+s\b|\bin this pr\b|"
    r"\blgtm\b|(^|\s)nit:|\bdocs?(\(\w+\))?: (?!http)\w|\b(add|document|clarif|updat)\w* (a |the |an )?(docs?|"
    r"documentation|note|section|faq|readme|troubleshooting)\b",
    re.IGNORECASE,
)
# Words of a person who describes an error. Programs do not print them.
_PROSE = re.compile(
    r"(^|\s)i (?=[a-z])|\b(im|ive|my|me|anyone|someone|somebody|thanks|hello|wondering|feature request|how "
    r"(do|can|to)|why (do|does|is)|we|our|sometimes|yesterday|last (night|week)|suddenly|occasionally)\b",
    re.IGNORECASE,
)
# Words quoted in a sentence: a program would print a colon before a message.
_QUOTE = re.compile(r"[a-z] [a-z]+ [(\[]?[\"`“](\w[^\"`”]* [^\"`”]* [^\"`”]*)[\"`”]")
_REPORTED = re.compile(r"\b(?:fail(?:s|ed)|says|prints|exit(?:s|ed)|reports)(?: with)? [\"“`]")
_ASKED = re.compile(r"\b(could|can|might|may|is|was) (this|it|that|there)( \w+){0,4}$")
_SAYS_ONLY = re.compile(
    r"\b(no|never|without|neither|nor|not|\w+nt|if|in case|avoid\w*|prevent\w*|may|might|could|can|would|is|was|says?|"
    r"states?|mentions?|claims?|rul\w+|exclud\w+|unrelated|rather)\b"
)
# The kernel's log has one writer, so its lines are in the order of events.
_ADDRESS = re.compile(r"Xid \((?:PCI:)?([0-9a-fA-F:.]+)\)")
_KERNEL = re.compile(r"\bNVRM:|\bS?Xid \(|\bnvidia-nvswitch|\bamdgpu [0-9a-f]{4}:")
# The number of lines before and after a match that are read for its figures, and the most characters of these lines.
_LINES_BEFORE, _LINES_AFTER, _MOST_LETTERS = 3, 12, 4000


@dataclass(frozen=True, slots=True)
class Match:
    """A known text that was found: its line, and the conditions of doctor that it points to.

    `excerpt` has the line and the lines after it, `context` also the lines before. `doubt` is evidence in the paste
    against the text. `is_advised` means that the fix follows from the facts that the paste states.
    """

    text: Condition
    line: int
    conditions: tuple[str, ...]
    excerpt: str = ""
    context: str = ""
    doubt: str = ""
    facts: Facts = field(default_factory=Facts)
    is_advised: bool = False

    @property
    def certainty(self) -> Certainty:
        """Return the certainty of the text. A symptom, or a text with a doubt, is a hint."""
        return "hint" if self.doubt or self.text.symptom else self.text.certainty


@dataclass(frozen=True, slots=True)
class _Place:
    """The range of a match, in characters without spaces."""

    text: Condition
    start: int
    end: int
    line: Line

    def within(self, other: _Place) -> bool:
        """Return whether `other` is a longer match that covers this one, is as specific and is not its consequence."""
        covered = other.start <= self.start and self.end <= other.end
        longer = other.end - other.start > self.end - self.start
        is_consequence = self.text.id.startswith(other.text.follows)
        # A pattern's gap may reach from a line of source to the printed text below, whose match is kept.
        is_printed = self.text.id == other.text.id and self.line.kind != "frame" and other.line.kind == "frame"
        is_as_specific = self.text.symptom or not other.text.symptom
        return covered and longer and not is_consequence and not is_printed and is_as_specific

    def adds_nothing(self, other: _Place) -> bool:
        """Return whether this is a consequence of an overlapping match, or a symptom on a line that names a cause."""
        covers = self.touches(other) and other.text.id.startswith(self.text.follows) and self.text.id != other.text.id
        return covers or (self.text.symptom and not other.text.symptom and self.line == other.line)

    def covers(self, other: _Place) -> bool:
        """Return whether this match covers another one of the same text."""
        return self.text.id == other.text.id and self.start <= other.start and other.end <= self.end

    def touches(self, other: _Place) -> bool:
        return self.start < other.end and other.start < self.end


class _Near:
    """Places sorted by their start, so that each of thousands is compared only with those near it."""

    def __init__(self, places: Sequence[_Place]) -> None:
        self._places = sorted(places, key=lambda place: place.start)
        self._starts = [place.start for place in self._places]
        self._longest = max((place.end - place.start for place in places), default=0)

    def to(self, place: _Place) -> Sequence[_Place]:
        """Return the places that may overlap `place` or be on its line."""
        first = bisect.bisect_left(self._starts, place.start - self._longest - _SAME_LINE)
        return self._places[first : bisect.bisect_right(self._starts, place.end + _SAME_LINE)]


def find(pasted: str, texts: Sequence[Condition], conditions: Sequence[Condition] = ()) -> list[Match]:
    """Return the known texts in `pasted`, the root cause first, each once.

    `conditions` are those of `gpucheck doctor`. A text points to the conditions that match at its place. A symptom
    comes after its cause. Among tracebacks the last group comes first. Within a chained group the exception that was
    raised first comes first. Among other lines the earliest comes first.
    """
    normal = normalise(pasted)
    named = _reported(normal, texts)
    # A text points to a condition at its place. A condition elsewhere counts only if the paste is about GPUs.
    pointed = [place for place in _places(normal, conditions, is_about_gpus=True) if place.line.kind != "quiet"]
    pointed = [place for place in pointed if not _is_only_named(normal, place)]
    is_about_gpus = _OURS.search(normal.spaced) is not None
    named, pointed = _wrapping(named, normal), _wrapping(pointed, normal)
    if not named and not (pointed and is_about_gpus):
        weak = [
            replace(text, patterns=(), names=(), common=text.weak, beside="", certainty="hint")
            for text in texts
            if text.weak
        ]
        named = _reported(normal, weak)
    near_texts, near_conditions = _Near(named), _Near(pointed)
    found = named + [
        place for place in pointed if is_about_gpus and not any(place.touches(other) for other in near_texts.to(place))
    ]
    unknown, is_all = _unknown_errors(normal, found)
    if is_all:
        found = [place for place in found if place.line.kind != "frame" and not _GOES_ON.search(place.line.text)]
    near = _Near(found)
    found = [
        place
        for place in found
        if not any(place.within(other) or place.adds_nothing(other) for other in near.to(place))
    ]
    if _SETTLED.search(normal.spaced) and all(
        _is_prose(place, normal) or _SETTLED.search(place.line.text) for place in found
    ):
        return []
    # A text in prose, in source code or in a message of a program that continues is no proof of an error.
    found = [
        replace(place, text=replace(place.text, certainty=_of_quote(place)))
        if place.line.kind == "frame" or _is_prose(place, normal) or _goes_on(place.line)
        else place
        for place in found
    ]
    facts = read_facts("\n".join(part for _, part in _numbered(pasted)), normal.spaced)
    by_id = {text.id: text for text in texts}
    becomes = {id: by_id.get(proven(id, facts)) for id in {place.text.id for place in found}}
    found = [replace(place, text=becomes[place.text.id] or place.text) for place in found]
    first = {
        place.text.id: place.line
        for place in reversed(found)
        if place.line.kind != "frame" and not _HARMLESS.search(place.line.text)
    }
    matches: dict[str, Match] = {}
    for place in sorted(found, key=lambda place: _order(place, first)):
        beside = [other.text.id for other in near_conditions.to(place) if other.touches(place)]
        match = matches.get(place.text.id)
        if match is None:
            text, is_advised = advise(place.text, facts)
            match = Match(text, place.line.number, (), *_excerpts(normal, place.line), "", facts, is_advised)
        matches[place.text.id] = replace(
            match, conditions=tuple(dict.fromkeys((*match.conditions, *place.text.conditions, *beside)))
        )
    return _doubted(list(matches.values()), found, unknown, is_all=is_all)


# Words between an error and its reason: within a sentence, or before another message on the same line.
_BEFORE_REASON = re.compile(r"dueto|because|causedby|reason:|followingerror|error:")
_REASON_WITHIN = 400


def _wrapping(places: Sequence[_Place], normal: Normal) -> list[_Place]:
    """Return the places. An error whose message gives another text as the reason is a symptom."""
    near = _Near(places)
    return [
        replace(place, text=replace(place.text, symptom=True))
        if any(_is_reason(other, place, normal) for other in near.to(place))
        else place
        for place in places
    ]


def _is_reason(other: _Place, place: _Place, normal: Normal) -> bool:
    """Return whether `other` is the reason that the message of `place` gives."""
    if other.text.symptom or other.text.id == place.text.id or _KERNEL.search(place.line.text):
        return False
    if not 0 <= other.start - place.end <= _REASON_WITHIN:
        return False
    lines = _message(normal, place.line) if place.line.kind == "exception" else (place.line.number,)
    return other.line.number in lines and _BEFORE_REASON.search(normal.solid, place.end, other.start) is not None


def _reported(normal: Normal, texts: Sequence[Condition]) -> list[_Place]:
    wrapping = [replace(text, patterns=text.wraps, common=(), names=(), symptom=True) for text in texts if text.wraps]
    texts = (*texts, *wrapping)
    places = [
        place
        for place in _places(normal, texts)
        if (
            place.text.logged
            # A pattern's gap may reach a line that reports no error, so both ends of the match are checked.
            or all(normal.lines_of(offset, offset)[0].kind != "quiet" for offset in (place.start, place.end - 1))
        )
    ]
    denied = [place for place in places if _is_only_named(normal, place)]
    # A pattern's gap may start on an earlier line and end in a denied error.
    return [place for place in places if not any(place.covers(other) for other in denied)]


def _is_only_named(normal: Normal, place: _Place) -> bool:
    """Return whether a sentence only mentions the error: it denies the error, asks about it or warns of it."""
    words = " ".join(place.line.text.translate(_WITHOUT_QUOTES).lower().split())
    letters = place.start - normal.starts[place.line.number - 1]
    is_said = _SAYS_ONLY.search(words) or _PROSE.search(words)
    if not is_said or place.line.kind not in ("plain", "exception"):  # most lines end here
        return False
    ends = [at for at, letter in enumerate(words) if letter != " "]
    before = words[: ends[letters] if letters < len(ends) else len(words)].rstrip()
    last = letters + place.end - place.start
    after = words[ends[last - 1] + 1 :] if 0 < last <= len(ends) else ""
    if place.line.kind == "exception":
        return _HEDGED.search(before) is not None
    denied = _DENIED.search(before) is not None or _DENIED_AFTER.search(after) is not None
    return denied or (_ASKED.search(before) is not None and "?" in words[len(before) :])


def _is_prose(place: _Place, normal: Normal) -> bool:
    """Return whether a person describes or quotes the error in a sentence, which is no proof."""
    line, words = place.line, normal.solid[place.start : place.end]
    is_quoted = any(words in "".join(quote.lower().split()) for quote in _QUOTE.findall(line.text))
    is_described = not line.prefix and _PROSE.search(line.text.translate(_WITHOUT_QUOTES)) is not None
    return line.kind == "plain" and (is_quoted or is_described)


def _of_quote(place: _Place) -> Certainty:
    """Return the certainty of a text in a sentence, which is more than a hint only if it quotes a program's output."""
    return "strong" if place.text.certainty != "hint" and _REPORTED.search(place.line.text) else "hint"


def _goes_on(line: Line) -> bool:
    """Return whether the program continues after this message. A warning about a deprecation does not count."""
    return _HARMLESS.search(line.text) is not None or (
        _GOES_ON.search(line.text) is not None and "deprecat" not in line.text.lower()
    )


def _unknown_errors(normal: Normal, found: Sequence[_Place]) -> tuple[list[Line], bool]:
    """Return the exceptions in the paste that no text explains, and whether these are all of its exceptions."""
    raised = [line for line in normal.lines if line.kind == "exception" and not _PASSED_ON.search(line.text)]
    # A message continues below its first line, up to the next frame or traceback.
    known = {line.number for place in found for line in normal.lines_of(place.start, place.end)}
    unknown = [line for line in raised if not known & set(_message(normal, line))]
    return unknown, bool(unknown) and len(unknown) == len(raised)


def _message(normal: Normal, line: Line) -> range:
    """Return the lines of an exception's message: its own and the plain ones below, up to the next entry of a log."""
    below = normal.lines[line.number : line.number + _LINES_AFTER]
    ends = (entry.number for entry in below if entry.kind != "plain" or entry.prefix not in ("", line.prefix))
    return range(line.number, next(ends, line.number + len(below) + 1))


def _doubted(matches: list[Match], found: Sequence[_Place], unknown: Sequence[Line], *, is_all: bool) -> list[Match]:
    """Return the matches. The first one gets a doubt if the paste has an unknown error or another cause."""
    if not matches:
        return matches
    first = matches[0]
    place = next(other for other in found if other.text.id == first.text.id and other.line.number == first.line)
    others = {
        other.text.id
        for other in found
        if other.line.kind != "frame"
        and not _goes_on(other.line)
        and not other.text.symptom
        and other.text.id != first.text.id
        and not other.text.id.startswith(first.text.follows)
        and not first.text.id.startswith(other.text.follows)
        and (other.line.kind == "exception" or place.line.kind != "exception")
        and not _of_one_event(other.line, place.line)
        # another Xid of the same fault, or a less serious fault of another GPU, is no other cause
        and (place.text.id not in _BLAME or other.text.title.partition(":")[2] != place.text.title.partition(":")[2])
        and not _is_less_grave(other, {first.text.id: place.line})
        # a fault of the GPU ends the program with one of these
        and not (
            _BLAME.get(first.text.id) == "device"
            and re.match(r"cuda\.(illegal|launch_failure|unknown)|cuinit\.999", other.text.id)
        )
        and (
            other.line.group == place.line.group
            # it is unknown which of two ranks failed first
            or ("rank" in other.line.prefix and "rank" in place.line.prefix and other.line.prefix != place.line.prefix)
        )
    }
    # The program continued after an earlier traceback. If the first match is a log line, any unknown error may have
    # ended the program.
    is_logged = place.line.kind == "plain" and not _KERNEL.search(place.line.text)
    later = [
        line for line in unknown if (line.group > place.line.group or is_logged) and not _PASSED_ON.search(line.text)
    ]
    is_unknown = is_all or later or (unknown and first.text.symptom)
    shown = (later or [*unknown])[-1].text[:100] if is_unknown else ""
    doubts = {
        f"the paste has an error that is not known, `{shown}`": is_unknown,
        "the paste has other causes too": others,
        "it is in a line of source code": place.line.kind == "frame",
        "the program says it goes on after it": _goes_on(place.line),
    }
    return [replace(first, doubt=next((doubt for doubt, holds in doubts.items() if holds), "")), *matches[1:]]


def _of_one_event(line: Line, other: Line) -> bool:
    """Return whether two lines of the kernel's log are about the same GPU."""
    address, another = _ADDRESS.search(line.text), _ADDRESS.search(other.text)
    return address is not None and another is not None and address[1] == another[1]


def _order(place: _Place, found: Mapping[str, Line]) -> tuple[bool | int, ...]:
    """Return the sort key of a place. Printed errors come first, then causes before their effects, then the more
    certain texts, then the earlier ones.

    `found` has the first line of each id. Deprecations come after failures.
    """
    line = place.line
    sure = CERTAINTIES.index(place.text.certainty)
    if line.kind != "exception" and "deprecat" in line.text.lower():
        sure = len(CERTAINTIES)
    return (
        line.kind == "frame" or _HARMLESS.search(line.text) is not None,  # perhaps never printed, or harmless
        any(
            name.startswith(place.text.follows) and not _is_effect(name, item, place)
            for name, item in found.items()
            if name != place.text.id
        ),
        place.text.symptom,
        _is_less_grave(place, found),
        line.kind == "quiet",
        0 if _KERNEL.search(line.text) else sure,
        _WEIGHT[line.kind],
        -line.group,
        line.number,
        sure,
        place.start - place.end,
    )


_BLAME = {f"xid.{row.number}": row.blame for row in xid.CATALOGUE}


def _is_less_grave(place: _Place, found: Mapping[str, Line]) -> bool:
    """Return whether the place's Xid is a program's mistake and another GPU's Xid shows a hardware fault."""
    return _BLAME.get(place.text.id) == "program" and any(
        _BLAME.get(name) == "device" and not _of_one_event(line, place.line) for name, line in found.items()
    )


def _is_effect(name: str, line: Line, place: _Place) -> bool:
    """Return whether a line of the kernel's log is an effect of the place's error, because it was written later.

    Among Xids the order does not count: the driver ends programs (43 and 45) before it reports the fault.
    """
    is_xid = name.startswith("xid.") and place.text.id.startswith("xid.")
    return line.number > place.line.number and not is_xid and all(_KERNEL.search(x.text) for x in (line, place.line))


def _excerpts(normal: Normal, line: Line) -> tuple[str, str]:
    """Return the line with those after it, and the same with the lines before it."""
    lines = [entry.text for entry in normal.lines[max(line.number - 1 - _LINES_BEFORE, 0) : line.number + _LINES_AFTER]]
    before = min(line.number - 1, _LINES_BEFORE)
    return " ".join(lines[before:])[:_MOST_LETTERS], " ".join(lines)[:_MOST_LETTERS]


def _places(normal: Normal, texts: Sequence[Condition], *, is_about_gpus: bool = False) -> Iterator[_Place]:
    tried: dict[Pattern, _Spans] = {}
    solid, spaced = normal.solid, normal.spaced
    is_about_gpus = is_about_gpus or _OURS.search(normal.spaced) is not None
    for text in texts:
        if text.unless and _holds(normal, text.unless):
            continue
        known = _holds(normal, text.beside) if text.beside else is_about_gpus
        sources = (*text.patterns, *text.names, *(text.common if known else ()))
        for pattern in (pattern for source in sources for pattern in alternatives(source)):
            if pattern.needs not in (spaced if pattern.by_word else solid):
                continue  # most patterns end here
            if pattern.any_number:
                any_number = compiled(pattern.any_number)
                if any_number not in tried:
                    tried[any_number] = _spans(normal, any_number)
                if not tried[any_number]:
                    continue
            if pattern not in tried:
                tried[pattern] = _spans(normal, pattern)
            spans = tried[pattern].get(text.number if "number" in pattern.regex.groupindex else "", [])
            spans = spans if len(spans) <= _MOST_PLACES else spans[: _MOST_PLACES // 2] + spans[-_MOST_PLACES // 2 :]
            if pattern.by_word:
                spans = [(normal.solid_offset(start), normal.solid_offset(end)) for start, end in spans]
            yield from (_Place(text, start, end, normal.lines_of(start, end)[0]) for start, end in spans)


def _holds(normal: Normal, source: str) -> bool:
    """Return whether a pattern matches anywhere in the form of the text that it applies to."""
    pattern = compiled(source)
    return pattern.regex.search(normal.spaced if pattern.by_word else normal.solid) is not None


def _spans(normal: Normal, pattern: Pattern) -> _Spans:
    """Return the ranges that a pattern matches, in the form of the text that it applies to."""
    within = normal.spaced if pattern.by_word else normal.solid
    found: _Spans = {}
    has_number = "number" in pattern.regex.groupindex
    for match in pattern.regex.finditer(within):
        if match.group():
            found.setdefault("", []).append(match.span())
            if has_number:
                found.setdefault(match["number"], []).append(match.span())
    return found
