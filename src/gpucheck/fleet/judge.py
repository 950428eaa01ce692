"""Judge the documents of a run: each node's state, its speed compared with siblings, and differing settings. No I/O."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from gpucheck import errors, units
from gpucheck.errors import UsageError
from gpucheck.fleet import hosts, siblings
from gpucheck.fleet.documents import MARKED_LINE, file_name
from gpucheck.fleet.hosts import few, nodes_text
from gpucheck.measure import runs
from gpucheck.report.finding import Finding
from gpucheck.report.results.fleet import FleetNode, FleetResult, NodeDocument, NodeState, RefusedFile

# Documents this much older than the others are from an earlier start: nodes of one job start within minutes.
OLD_S = 6 * 3600.0
# In a small fleet, this many nodes may be slow or silent before the check itself is suspect.
LEAST_MAX_BAD = 3
# The first line shows the cause of a single undecided node if the cause is not longer than this.
MOST_CAUSE = 80
_NAME_OF_DOCUMENT = re.compile(r"(.+)(\.[0-9a-f]{12}\.json)")
# The most groups and refused files in the JSON. A larger number comes from an attack or a wrong folder.
MOST_GROUPS, MOST_REFUSED = 200, 100

_STATES: dict[int | None, NodeState] = {
    None: "silent",
    errors.OK: "good",
    errors.FAILED: "bad",
    errors.COULD_NOT_LOOK: "blind",
    errors.UNDECIDED: "undecided",
}
_WORST_FIRST: tuple[NodeState, ...] = ("bad", "silent", "blind", "undecided", "good")
_VERDICTS = ("fail", "inconclusive", "skip", "warn")


@dataclass(frozen=True, slots=True)
class FleetJudgement:
    """The answer, and the findings with the most important first."""

    result: FleetResult
    findings: tuple[Finding, ...]


def judge(
    documents: Sequence[NodeDocument],
    refused: Sequence[RefusedFile] = (),
    *,
    run: str | None = None,
    expected: tuple[str, ...] | int | None = None,
    max_bad: float = 0.05,
    devices: int | None = None,
) -> FleetJudgement:
    """Judge all nodes of one run.

    `expected` are the names of the nodes or their number; by default the number in most of the documents. `max_bad`
    is the share that may be slow or silent before the check is suspect. `devices` is the number of GPUs that each node
    must have. Raises UsageError if there are several runs and the choice is unclear.
    """
    chosen = _run_of(documents, refused, run)
    remarks: list[Finding] = []
    if others := Counter(document.run for document in documents if document.run != chosen):
        text = ", ".join(f"{name!r} ({count})" for name, count in others.most_common(5))
        evidence = {"runs": [name for name, _ in others.most_common(3)]}
        remarks.append(Finding("fleet.other_run", "info", "documents of other runs were left out", text, evidence))
    listed = dict.fromkeys(expected if isinstance(expected, tuple) else ())
    nodes, duplicates = _one_each([document for document in documents if document.run == chosen], listed)
    if duplicates:
        why = f"{few(duplicates)}: the last written document counts"
        remarks.append(_warning("fleet.duplicate", "several documents of one node and attempt", why, duplicates))
    unexpected = tuple(sorted(set(nodes).difference(listed))) if listed else ()
    if unexpected:
        title = f"{nodes_text(len(unexpected))} not expected: left out"
        remarks.append(_warning("fleet.unexpected", title, few(unexpected), unexpected))
        nodes = {host: nodes[host] for host in nodes if host in listed}
    elif isinstance(expected, int) and len(nodes) > expected:
        title = f"{len(nodes)} nodes left documents, but {expected} were expected"
        remarks.append(_warning("fleet.unexpected", title, "all of them are judged"))
    nodes, rows, old = _of_one_start(nodes)
    comparison = siblings.compare_siblings(nodes)
    fewer = _fewer_devices(nodes, devices)
    rows += [_node(document, comparison, *fewer.get(host, ("", False))) for host, document in nodes.items()]
    # The reason for each refused file of this run, by the node in the file's name.
    causes = {host: file.why for file in refused for host, end in [_host_and_end(file)] if end == file_name("", chosen)}
    broken = dict(sorted(causes.items())[: hosts.MOST_NODES])
    known = {row.host for row in rows}
    rows += [_missing(host, broken.get(host)) for host in listed if host not in known]
    if not listed:
        rows += [_missing(host, why) for host, why in broken.items() if host not in known]
        rows += _unnamed(len(rows), expected if isinstance(expected, int) else None, nodes.values(), refused)
    # Silent nodes that wrote no cause come before nodes that were ended from outside.
    ended = {host for host, document in nodes.items() if document.ended}
    rows.sort(key=lambda row: (_WORST_FIRST.index(row.state), row.host in ended, row.host))
    proven = {host for host, document in nodes.items() if document.exit == errors.FAILED}
    if devices is not None:
        # A number of GPUs other than --devices is proof, unless the number is unknown.
        proven |= {host for host in fewer if nodes[host].gpus is not None or nodes[host].devices}
    bad = [row.host for row in rows if row.state in ("bad", "silent")]
    is_suspect = len(set(bad) - proven) > _most_bad(rows, max_bad)
    counts = Counter(row.state for row in rows)
    groups = sorted(comparison.groups, key=lambda group: (-group.nodes, group.model, group.figure))
    result = FleetResult(
        chosen,
        tuple(rows),
        tuple(groups[:MOST_GROUPS]),
        {state: counts[state] for state in _WORST_FIRST},
        tuple(row.host for row in rows if row.state == "good" and hosts.is_safe(row.host)),
        tuple(host for host in bad if hosts.is_safe(host) and (host in proven or not is_suspect)),
        is_suspect,
        tuple(refused[:MOST_REFUSED]),
        unexpected,
    )
    remarks += [*old, *_of_files(refused), *_drifts(nodes), *comparison.findings]
    return FleetJudgement(result, (*_verdict(result, max_bad, proven, comparison), *remarks))


# -- which documents ---------------------------------------------------------------------------------------------------


def _run_of(documents: Sequence[NodeDocument], refused: Sequence[RefusedFile], run: str | None) -> str:
    """Return the run to judge: the requested run, else the newest. Raises UsageError if the newest may be a mistake.

    A run with far fewer nodes than another may be a test, or a document with a wrong clock. A run without any readable
    document may be the newest.
    """
    sizes = Counter(document.run for document in documents)
    if run is not None or not sizes:
        return run or ""
    newest = max(documents, key=lambda document: document.started_wall_s).run
    if 2 * sizes[newest] < max(sizes.values()):
        known = ", ".join(f"{name!r} ({count})" for name, count in sizes.most_common(5))
        raise UsageError("the documents belong to several runs", known, "choose a run with --run ID")
    readable = {file_name("", name) for name in sizes}
    unread = sum(end not in {"", *readable} for _, end in map(_host_and_end, refused))
    if 2 * unread >= sizes[newest]:
        why = f"{unread} unreadable document{'s' * (unread != 1)}, and {sizes[newest]} of the run {newest!r}"
        raise UsageError("another run has only unreadable documents", why, "choose a run with --run ID")
    return newest


def _one_each(
    documents: Sequence[NodeDocument], listed: Collection[str]
) -> tuple[dict[str, NodeDocument], tuple[str, ...]]:
    """Return one document per node, and the names of nodes with several documents of the same attempt.

    A short and a full host name are one node if the list has exactly one of the two, and no third name is similar.
    """
    all_names = {*listed, *(document.host for document in documents)}
    name_of = {}
    for short, names in runs.group_by(lambda name: name.partition(".")[0].lower(), all_names).items():
        names.sort(key=lambda name: name in listed)
        # Two full names with the same beginning are two nodes. Three similar names are not merged.
        if len(names) == 2 and (names[0] in listed) < (names[1] in listed) and short in map(str.lower, names):
            name_of[names[0]] = names[1]
    nodes: dict[str, NodeDocument] = {}
    duplicates: dict[str, None] = {}
    for document in documents:
        host = name_of.get(document.host, document.host)
        before = nodes.setdefault(host, document)
        if before.attempt == document.attempt and before != document:
            duplicates[host] = None
        # The last attempt counts, then the last written document, then a failed one.
        nodes[host] = max(
            before, document, key=lambda row: (row.attempt, row.written_wall_s, row.exit == errors.FAILED)
        )
    return {host: replace(document, host=host) for host, document in nodes.items()}, tuple(duplicates)


def _of_one_start(nodes: Mapping[str, NodeDocument]) -> tuple[dict[str, NodeDocument], list[FleetNode], list[Finding]]:
    """Return the nodes that started together, rows for nodes that started much earlier or later, and findings.

    Start times are compared with the median, so one wrong or forged clock does not make other nodes old. If a node that
    passed started much later than most, its clock is wrong, or the others are old.
    """
    starts = sorted(document.started_wall_s for document in nodes.values()) or [0.0]
    middle = starts[len(starts) // 2]
    fix = "start a check on it; use a new --run ID for every night"
    rows: list[FleetNode] = []
    for host, document in nodes.items():
        if (late_s := document.started_wall_s - middle) < -OLD_S:
            cause = f"its document is {units.age(-late_s)} older than the others"
            rows.append(FleetNode(host, "silent", "", cause, fix))
        elif late_s > OLD_S and document.exit == errors.OK:
            cause = f"its document is {units.age(late_s)} newer than the others, which may be old"
            rows.append(FleetNode(host, "undecided", "", cause, f"check its clock; {fix}", document.attempt))
    findings = []
    if starts[-1] - starts[0] > OLD_S:
        title = f"documents of one run are up to {units.age(starts[-1] - starts[0])} apart"
        old = sorted(row.host for row in rows if row.state == "silent")
        findings = [Finding("fleet.old", "warn", title, "", {"nodes": old}, "use a new --run ID for every start")]
    apart = {row.host for row in rows}
    return {host: document for host, document in nodes.items() if host not in apart}, rows, findings


def _host_and_end(file: RefusedFile) -> tuple[str, str]:
    """Return the node in a document's file name, and the end of the name, which means the run; else empty texts."""
    matched = _NAME_OF_DOCUMENT.fullmatch(PurePath(file.path).name)
    return (matched[1], matched[2]) if matched and hosts.is_safe(matched[1]) else ("", "")


def _of_files(refused: Sequence[RefusedFile]) -> list[Finding]:
    findings = []
    for id, word, is_forged in (("fleet.forged", "refused as forged", True), ("fleet.unreadable", "unreadable", False)):
        if files := [file for file in refused if _is_forged(file.why) is is_forged]:
            reasons = Counter(file.why.removeprefix("forged? ") for file in files).most_common(3)
            text = "; ".join(why if len(reasons) == 1 else f"{count} × {why}" for why, count in reasons)
            title = f"{len(files)} document{'s' * (len(files) != 1)} {word}"
            findings.append(_warning(id, title, f"{text}: {few([file.path for file in files])}"))
    return findings


# -- nodes -------------------------------------------------------------------------------------------------------------


def _node(document: NodeDocument, comparison: siblings.SiblingComparison, lacking: str, is_majority: bool) -> FleetNode:
    """Judge a node by its check and its siblings. `lacking` is a text if the node has fewer devices than others.
    `is_majority` means that enough nodes agree to call this node bad."""
    host, state = document.host, _STATES[document.exit]
    slow = tuple(comparison.slow.get(host, ()))
    cause, fix = _own_cause(document)
    faults = [f"{part.id} {part.ended or 'did not pass'}" for part in document.parts if part.exit != 0 or part.ended]
    faults += [f"{row.part}: {row.title}" for row in document.problems if row.verdict in ("fail", "inconclusive")]
    if state == "good" and faults:
        state, cause = "undecided", f"its check reports a pass, but {faults[0]}"
        fix = f"on {host}: gpucheck fleet check"
    certain = tuple(device for device in slow if device.certain)
    if state in ("good", "undecided", "blind") and (certain or is_majority):
        state = "bad"
        # The node's own findings may explain missing devices, but not a slow device.
        if is_majority:
            cause, fix = "; ".join(filter(None, (lacking, cause))), fix or f"on {host}: gpucheck doctor"
        else:
            worst, cause = siblings.worst_of(certain), siblings.slow_text(certain)
            fix = siblings.bench(host, worst.figure, "all" if worst.device == siblings.WHOLE else worst.device)
    elif state == "good":
        doubts = (
            comparison.modes.get(host),
            (f"{siblings.slow_text(slow)}; not certain", "check the node again while it is idle") if slow else None,
            (lacking, f"on {host}: gpucheck doctor") if lacking else None,
            comparison.far.get(host),
            comparison.unmeasured.get(host),
        )
        if doubt := next(filter(None, doubts), None):
            state, (cause, fix) = "undecided", doubt
    ratios = comparison.ratios.get(host, {})
    return FleetNode(host, state, document.step, cause, fix, document.attempt, len(document.devices), slow, ratios)


def _own_cause(document: NodeDocument) -> tuple[str, str | None]:
    """Return the node's cause and fix: the step where it stopped, else its worst finding, else an unfinished part."""
    if document.exit is None:
        after = f"{units.age(max(document.written_wall_s - document.started_wall_s, 0.0))} into the check"
        if document.ended:
            fix = "its launcher, its scheduler or a user ended it: check first the nodes that wrote no cause"
            return f"ended by {document.ended} at {document.step}, {after}", fix
        # The document was written at the start of the step. The time of its end is unknown.
        fix = "look at the node: it is still running, hung or dead, or its job was ended"
        return f"stopped at {document.step}, which began {after}", fix
    if document.exit == errors.OK:
        return "", None
    problems = {problem.verdict: problem for problem in reversed(document.problems)}
    if worst := next((problems[verdict] for verdict in _VERDICTS if verdict in problems), None):
        return ": ".join(filter(None, (worst.title, worst.message))), worst.fix
    command = f"on {document.host}: gpucheck fleet check"
    if (part := next((part for part in document.parts if part.ended), None)) is None:
        return "its check did not pass, cause unknown", command
    return f"{part.id}: {part.ended}", f"{command} --only {part.id}"


def _missing(host: str, broken: str | None = None) -> FleetNode:
    if broken:
        # Anyone may have written a forged document, so it must not drain a node.
        state: NodeState = "undecided" if _is_forged(broken) else "silent"
        return FleetNode(host, state, "", f"its document is refused: {broken}", "run the check again on that node")
    return FleetNode(host, "silent", "", "left no document", "check that the node is up and its job was started")


def _is_forged(why: str) -> bool:
    return why.startswith("forged?")


def _unnamed(
    known: int, expected: int | None, documents: Iterable[NodeDocument], refused: Sequence[RefusedFile]
) -> list[FleetNode]:
    """Return a row for each missing node without a name. The number of nodes comes from `--expect N`, else from most
    documents. If neither is known, each log with an unreadable line may have another node."""
    numbers = Counter(document.expected for document in documents if document.expected is not None)
    count = max(numbers, key=numbers.__getitem__, default=None) if expected is None else expected
    if count is not None:
        return [_missing(f"(unnamed {number + 1})") for number in range(min(count, hosts.MOST_NODES) - known)]
    fix = "judge the whole log, or name the nodes with --expect"
    causes = [f"{PurePath(file.path).name}: {file.why}" for file in refused if file.why.startswith(MARKED_LINE)]
    return [FleetNode(f"(unnamed {number})", "undecided", "", cause, fix) for number, cause in enumerate(causes, 1)]


def _fewer_devices(nodes: Mapping[str, NodeDocument], required: int | None) -> dict[str, tuple[str, bool]]:
    """Return nodes with fewer devices than usual for their GPU, and whether enough nodes agree to call the node bad.

    With `--devices N`, every node with another number is bad. (A document of an older gpucheck has no number of GPUs.)
    Else nodes are compared with those of the same GPU, and nodes without a GPU with all nodes. If no number is usual, a
    node is undecided if at least a quarter of the nodes have the same larger number.
    """
    ended = {host: document for host, document in nodes.items() if document.exit is not None}
    gpus = {host: [device.name for device in row.devices if device.id != "cpu"] for host, row in ended.items()}
    if required is not None:
        numbers = {host: len(gpus[host]) if row.gpus is None else row.gpus for host, row in ended.items()}
        return {host: (gpus_text(number, required), True) for host, number in numbers.items() if number != required}
    counts_of: dict[str, Counter[int]] = defaultdict(Counter)
    for host, document in ended.items():
        for model in {max(gpus[host], default=""), ""}:
            counts_of[model][len(document.devices)] += 1
    fewer = {}
    for host, document in ended.items():
        counts, count = counts_of[max(gpus[host], default="")], len(document.devices)
        total = sum(counts.values())
        # If two nodes differ, the node with more devices counts as complete.
        usual, usual_nodes = max(counts.items(), key=lambda row: (row[1], row[0]))
        most = max(number for number, nodes in counts.items() if number == usual or 4 * nodes >= total)
        is_bad = count < usual and total >= siblings.LEAST_NODES and 2 * usual_nodes > total
        others = f"{nodes_text(counts[most])} {'has' if counts[most] == 1 else 'have'} {most}"
        if count < most:
            others = f"the others have {usual}" if is_bad else others
            fewer[host] = f"{count} device{'s' * (count != 1)}, {others}", is_bad
    return fewer


def gpus_text(count: int, required: int) -> str:
    return f"{count or 'no'} GPU{'s' * (count != 1)}, must have {required}"


def _drifts(nodes: Mapping[str, NodeDocument]) -> list[Finding]:
    """Report settings in which nodes differ from most. All differences of the same nodes are one finding."""
    hosts_of: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for host, document in nodes.items():
        for key, value in document.settings.items():
            hosts_of[key][value].append(host)
    shared: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for key, by_value in sorted(hosts_of.items()):
        (usual, usual_hosts), *others = sorted(by_value.items(), key=lambda row: (-len(row[1]), row[0]))
        for value, names in others:
            word = "others" if len(names) == len(usual_hosts) else "most"
            shared[tuple(sorted(names))].append(f"{key} {value} ({word}: {usual})")
    findings = []
    for together, differences in sorted(shared.items(), key=lambda row: (-len(row[1]), row[0])):
        title = f"{nodes_text(len(together))} with {few(differences, 4)}"
        evidence = {"nodes": list(together), "settings": differences}
        findings.append(Finding("fleet.drift", "warn", title, few(together), evidence))
    return findings[: siblings.MOST_KINDS]


# -- the verdict on the fleet ------------------------------------------------------------------------------------------


def _most_bad(rows: Sequence[FleetNode], max_bad: float) -> float:
    """Return the number of slow or silent nodes above which the check itself is suspect: at most a quarter."""
    # Nodes that are known only from a forged document do not count. They are undecided and have no attempt.
    nodes = sum(row.attempt is not None or row.state == "silent" for row in rows)
    return min(max(max_bad * nodes, LEAST_MAX_BAD), siblings.most_low(nodes))


def _verdict(
    result: FleetResult, max_bad: float, proven: set[str], comparison: siblings.SiblingComparison
) -> list[Finding]:
    """Return the findings of the first line, or none if no node could be checked, which is an error."""
    counts, total = result.counts, len(result.nodes)
    if counts["blind"] == total:
        return []
    bad = [row.host for row in result.nodes if row.state in ("bad", "silent")]
    text = ", ".join(
        f"{count} {'could not look' if state == 'blind' else state}" for state, count in counts.items() if count
    )
    suspect = []
    if result.suspect:
        unsure = [host for host in bad if host not in proven]
        most = f"{_most_bad(result.nodes, max_bad):g}"
        title = f"suspect the check: {len(unsure)} of {nodes_text(total)} slow or silent (limit {most})"
        lists = f"only the {len(result.bad)} that failed a check count as bad" if result.bad else "none counts as bad"
        commands = (f"on {host}: gpucheck fleet check" for host in unsure if hosts.is_safe(host))
        fix = next(commands, "check that the nodes are up and their job was started")
        if len(unsure) <= _most_bad(result.nodes, 1.0):  # no value of --max-bad helps with more nodes than this
            fix += "; or raise --max-bad"
        suspect.append(Finding("fleet.suspect", "inconclusive", title, lists, {"counts": counts}, fix))
        if not result.bad:
            return suspect
    if bad:
        names = f"proven only for {few(result.bad)}" if result.suspect else few(bad)
        title = f"{len(bad)} of {nodes_text(total)} bad or silent: {names}"
        return [Finding("fleet.nodes", "fail", title, text, {"counts": counts}), *suspect]
    if counts["good"] == total:
        if not (not_compared := [row.host for row in result.nodes if row.host not in comparison.compared]):
            return [Finding("fleet.nodes", "pass", f"all {total} nodes are good", "", {"counts": counts})]
        which = "speed" if len(not_compared) == total else f"speed of {few(not_compared)}"
        why = f"a comparison needs {siblings.LEAST_NODES} nodes of one model"
        title = f"{nodes_text(total)}: nothing failed; {which} not compared ({why})"
        # A speed that was not compared is neither a pass nor a fault.
        return [Finding("fleet.nodes", "info", title, "", {"counts": counts, "not_compared": not_compared})]
    title = f"{counts['good']} of {nodes_text(total)} good"
    others = [row for row in result.nodes if row.state != "good"]
    if len(others) == 1 and 0 < len(others[0].cause) <= MOST_CAUSE:
        title = f"{title}; {others[0].host}: {others[0].cause}"
    # A node far below only two or three others is not proven slow, so it only warns.
    is_far = all(row.cause == comparison.far.get(row.host, ("", ""))[0] for row in others)
    return [Finding("fleet.nodes", "warn" if is_far else "inconclusive", title, text, {"counts": counts})]


def _warning(id: str, title: str, text: str, nodes: tuple[str, ...] = ()) -> Finding:
    return Finding(id, "warn", title, text, {"nodes": list(nodes)} if nodes else {})
