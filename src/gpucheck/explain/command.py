"""`gpucheck explain`: what a pasted text or an id means.

It also collects all known ids: findings that each package declares, doctor's conditions, and the texts.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from gpucheck import naming
from gpucheck.bench import ids as bench
from gpucheck.config import THRESHOLDS
from gpucheck.doctor.condition import Condition
from gpucheck.doctor.ladder import CONDITIONS
from gpucheck.errors import UsageError
from gpucheck.explain import (
    figures,
    texts_cuda,
    texts_install,
    texts_libraries,
    texts_memory,
    texts_packages,
    texts_programs,
    texts_start,
    texts_training,
)
from gpucheck.explain.facts import read as read_facts
from gpucheck.explain.match import Match, find
from gpucheck.explain.steps import filled, of_server, room, stated, step, untried
from gpucheck.explain.text import named
from gpucheck.fleet import ids as fleet
from gpucheck.messages import CAUSES, FIX
from gpucheck.program import judge as program
from gpucheck.program.lint.options import RULES
from gpucheck.report.codec import visible
from gpucheck.report.events import Answered, Emit, Judged, Notice
from gpucheck.report.finding import Finding, Id, ids_of
from gpucheck.report.results.short import ExplainResult, IdPage, KnownId, TextMatch
from gpucheck.smoke.options import CHECKS
from gpucheck.stress import judge as stress
from gpucheck.units import capacity

# Findings that belong to no check: options of smoke, failures that end any command, bugs, and an interrupted report.
_OWN = (
    *ids_of(
        "smoke",
        Id(
            "device.required",
            "a kind of accelerator is required",
            "`--require` requires a kind of device that torch cannot use here.",
            "gpucheck doctor",
        ),
        Id(
            "device.count",
            "a minimum number of devices is required",
            "`--min-devices` requires more devices than torch can use here.",
            "gpucheck devices; then gpucheck doctor",
        ),
    ),
    *ids_of(
        "bench, memory, smoke and find-batch-size",
        Id(
            "device.error",
            "the device works",
            "The device, its driver or one of its libraries failed during the work: a known device error, a small "
            "kernel that fails in a fresh process too, or no answer. Earlier results are kept, and meet no threshold.",
            "follow the fix in the finding; else gpucheck smoke; sudo dmesg | grep -i xid",
        ),
        Id(
            "device.memory",
            "there was enough memory to work",
            "Memory ran out on the device or the host during the work. Usually another process took it.",
            f"{FIX['memory held']} shows which processes use memory; then run again",
        ),
    ),
    *ids_of(
        "devices, and every other command",
        Id(
            "gpucheck.error",
            "gpucheck itself works",
            "A bug in gpucheck ended the command. The results so far are in the report.",
            "report it with the traceback at the project's issue tracker",
        ),
    ),
    *ids_of(
        "judge",
        Id(
            "judge.incomplete",
            "every run came to its end",
            "The document comes from an interrupted run. Results that it did not measure are unknown.",
            "measure it again",
        ),
    ),
)

TEXTS: tuple[Condition, ...] = named(
    (
        *texts_start.TEXTS,
        *texts_memory.TEXTS,
        *texts_cuda.TEXTS,
        *texts_libraries.TEXTS,
        *texts_training.TEXTS,
        *texts_packages.TEXTS,
        *texts_programs.TEXTS,
        *texts_install.TEXTS,
    )
)

# Pages of findings and causes that are not texts.
PAGES: dict[str, Id] = {
    entry.id: entry
    for entry in (
        *(
            Id(
                row.id,
                f"a device's error: {row.title}",
                "A call on the device failed, and the exception's message and frames name this cause.",
                row.fix or 'gpucheck explain "MESSAGE" names what is behind it',
                command="bench, run, memory, smoke and find-batch-size",
            )
            for row in CAUSES
            if row.id not in {text.id for text in TEXTS}
        ),
        # Thresholds come later, so that their page replaces that of a benchmark's row with the same id.
        *(
            Id(
                threshold.id,
                f"your threshold, in {threshold.kind}",
                f"{'A lower' if threshold.direction == 'at least' else 'An upper'} bound for {threshold.judges}.",
                f"set it with {threshold.option} or [thresholds] in gpucheck.toml",
                command=threshold.command,
            )
            for threshold in THRESHOLDS
        ),
        *(Id(check.id, check.title, check.meaning, check.then, command="smoke") for check in CHECKS),
        *(*_OWN, *bench.IDS, *stress.IDS, *fleet.IDS, *program.IDS),
        *(
            Id(
                rule.id,
                rule.title,
                rule.meaning,
                "gpucheck lint PATH names the lines; docs/lint.md shows each rule wrong and right",
                command="lint",
            )
            for rule in RULES
        ),
    )
}


def of_condition(condition: Condition) -> Condition:
    """Return a condition of doctor as a text, which proves nothing, so that the step is `gpucheck doctor`."""
    fix = f"gpucheck doctor verifies it; if it is the cause: {condition.fix}" if condition.fix else "gpucheck doctor"
    # The patterns count only in texts about GPUs, because other programs print similar messages.
    common, checked = condition.patterns, (condition.id,)
    return replace(condition, patterns=(), common=common, fix=fix, certainty="hint", conditions=checked, judge=None)


OF_CONDITIONS: tuple[Condition, ...] = tuple(of_condition(condition) for condition in CONDITIONS if condition.patterns)


# Suffixes of files with program output.
LOGS = (".txt", ".log", ".err", ".out")
# Only the end of a log is read. More would take seconds without improving the answer.
MOST_BYTES = 2**20


def entries() -> dict[str, Condition | Id]:
    """Return everything that has a page, by id: findings, texts and doctor's conditions."""
    return {**PAGES, **{text.id: text for text in TEXTS}, **{condition.id: condition for condition in CONDITIONS}}


def listing(emit: Emit) -> None:
    """Answer with every id and its title."""
    known = tuple(KnownId(name, _whose(item), item.title) for name, item in sorted(entries().items()))
    emit(Answered("explain", ExplainResult(known=known)))


def word(given: str, emit: Emit) -> None:
    """Answer a single word in the form of an id: with its page, else with its meaning as a text.

    Raises UsageError with the nearest id if it is neither.
    """
    known = entries()
    if given not in known and find(given, TEXTS, OF_CONDITIONS):
        explain(given, emit)
        return
    if given not in known:
        # Many of the hundreds of ids are somewhat similar, so only a close one is proposed.
        raise UsageError(f"unknown id {given!r}", "", naming.did_you_mean(given, known) or "--list shows all")
    page(given, emit)


def page(name: str, emit: Emit) -> None:
    """Answer with the page of an id. Raises KeyError for an unknown one."""
    answer = _page_of(entries()[name])
    emit(Answered("explain", ExplainResult(page=answer)))
    evidence = {"id": name, "of": answer.of}
    emit(Judged(Finding("explain.page", "info", answer.title, answer.meaning, evidence, answer.then or None)))


def is_id(text: str) -> bool:
    """Return whether the text has the form of an id: two or more words with dots between."""
    return re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+", text.lower()) is not None


def is_missing_file(given: str) -> bool:
    """Return whether a single word is the path of a missing file, and matches no text."""
    is_path = os.sep in given or given.lower().endswith(LOGS)
    return is_path and len(given.split()) == 1 and not os.path.exists(given) and not find(given, TEXTS, OF_CONDITIONS)


# A line that reports an error, and a program's own advice in it or in the lines after it.
_ERROR_LINE = re.compile(
    r"^(?!.*c10::).{0,200}?\b((?:\w*(?:Error|Exception|error)|ERROR|fatal|FATAL)\b.{0,40}?: ?[^\W\d_].*)$", re.MULTILINE
)
_OWN_ADVICE = re.compile(
    r"\b(?:(?:Please|You (?:can|may|need to|should)|Try|Use|Consider|Make sure|To (?:fix|avoid|solve))\b|pip install )"
    r"[^\n;]{3,160}?(?=[.;](?:\s|$)|$)",
    re.MULTILINE,
)


def own_words(pasted: str) -> tuple[str, str]:
    """Return the last line of a text that reports an error, and what the program itself advises there."""
    last = next(reversed([*_ERROR_LINE.finditer(pasted)]), None)
    if last is None:
        return "", ""
    advice = _OWN_ADVICE.search("\n".join(pasted[last.start() :].splitlines()[:4]))
    return visible(last[1].strip()[:200]), visible(advice[0]) if advice else ""


def explain(pasted: str, emit: Emit, cut_from_bytes: int | None = None) -> None:
    """Answer with the meaning of the text, the root cause first. An unknown text is inconclusive.

    `cut_from_bytes` is the original length if only the end was read.
    """
    if cut_from_bytes is not None:
        emit(Notice(f"{capacity(cut_from_bytes)} given; only the last {capacity(MOST_BYTES)} read"))
    matches = tuple(_answer(match) for match in find(pasted, TEXTS, OF_CONDITIONS))
    emit(Answered("explain", ExplainResult(len(pasted), cut_from_bytes, matches)))
    if not matches:
        emit(Judged(_unknown(pasted)))
    for match in matches[:1]:
        evidence = {"text": match.id}
        evidence |= {name: getattr(match, name) for name in ("certainty", "conditions", "numbers")}
        meaning = ". ".join(filter(None, (match.says, match.meaning)))
        emit(Judged(Finding("explain.text", "info", match.title, meaning, evidence, match.then)))


def _unknown(pasted: str) -> Finding:
    """Return the finding for a text without a known error: the program's own last error, and who raised it."""
    error, advice = own_words(pasted)
    known = {"texts": len(TEXTS) + len(OF_CONDITIONS), **({"last_error": error} if error else {})}
    then = "gpucheck doctor on the machine where it happened, then gpucheck smoke"
    if not error:
        is_whole = len(pasted.splitlines()) > 1 or re.search(r"(?:Error|Exception)\b[^:]{0,60}: ?\S", pasted)
        message = "it contains no known error" + ("" if is_whole else "; paste the whole traceback")
        return Finding("explain.unknown", "inconclusive", "unknown text", message, known, then)
    facts = read_facts(pasted, pasted.lower())
    raised = next((name for name in facts.packages[-1:] if name not in ("torch", facts.checkout)), "")
    own = f"the text itself advises: {advice}" if advice else ""
    own = own or (f"search the issues of {raised} for these words, and try another release of it" if raised else "")
    message = f"the last error of the text{f', raised in {raised}' if raised else ''}; gpucheck does not know it"
    return Finding("explain.unknown", "inconclusive", error, message, known, f"{own}; else {then}" if own else then)


def _answer(match: Match) -> TextMatch:
    text = match.text
    read = figures.read(text.id, match.excerpt, match.context)
    specific = bool(read.then) or match.is_advised
    then = text.fix if match.is_advised else read.then or text.fix
    if "bus" in read.numbers and not read.then:  # `nvidia-smi -i` accepts the address, which cannot select another GPU.
        then = re.sub(r"-i INDEX(?![,\w])", f"-i {read.numbers['bus']}", then)
    then = of_server(text.id, room(then, match.facts), match.facts)
    library, _, _ = str(read.numbers.get("library", "LIBRARY")).partition(".so")
    then = then.replace("'LIBRARY*'", f"'{library}*'")
    then = then.replace("grep PORT", f"grep {read.numbers.get('port', 'PORT')}")
    then = then.replace("NAME==VERSION", f"{match.facts.compiled or 'NAME'}==VERSION")
    then = step(match.facts.platforms | match.facts.names, text.id, filled(then, match.facts), specific=specific)
    then = stated(then, match.facts)
    then = untried(then, match.facts) or untried(text.fix, match.facts) or then
    return TextMatch(
        id=text.id,
        title=read.title if read.title and (read.doubt or not match.is_advised) else text.title,
        meaning="" if read.doubt else text.meaning,
        certainty="hint" if read.doubt else match.certainty,
        then=then,
        says=read.says,
        specific=specific,
        numbers=read.numbers,
        conditions=match.conditions,
        line=match.line,
        symptom=text.symptom,
        doubt=read.doubt or match.doubt,
    )


def _whose(entry: Condition | Id) -> str:
    if isinstance(entry, Id):
        return entry.command
    return "text" if entry.judge is None else "doctor"


def _page_of(entry: Condition | Id) -> IdPage:
    about = (entry.id, _whose(entry), entry.title, entry.meaning)
    if isinstance(entry, Id):
        return IdPage(*about, then=entry.then)
    verdict = None if entry.judge is None else entry.verdict
    return IdPage(*about, entry.fix, entry.certainty, entry.stage, verdict, entry.settle)
