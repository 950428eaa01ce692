"""The IDs of the findings of `fleet check` and `fleet judge`, with their meanings. No I/O."""

from __future__ import annotations

from gpucheck.report.finding import Id, ids_of

_CHECK = ids_of(
    "fleet check",
    Id("fleet.node", "this node is good", "No check of the node failed or stayed undecided."),
    Id(
        "fleet.part",
        "every part of the check finished",
        "A part of the check ran out of time, ended early or has no readable result. The finding has the cause.",
        "run only that part, with the command in the finding",
    ),
    Id("fleet.rank", "one rank of a node checks it", "Another rank of this node writes the document."),
    Id(
        "fleet.devices",
        "the node has its GPUs",
        "The node has no GPU, or not the number of GPUs that --devices requires.",
        "gpucheck doctor; --devices 0 for a node without GPUs",
    ),
)
_JUDGE = ids_of(
    "fleet judge",
    Id(
        "fleet.nodes",
        "no node is bad or silent",
        "Nodes failed their check, left no document, or differ from their siblings.",
        "drain the nodes in bad.txt; the report has the cause and the command for each node",
    ),
    Id(
        "fleet.suspect",
        "few enough nodes are bad",
        "More nodes than --max-bad are slow or silent. The cause is probably the check itself, a driver or a shared "
        "service. Only nodes that failed their check are listed as bad.",
        "check one of these nodes by hand; if they are really bad and at most a quarter, raise --max-bad",
    ),
    Id(
        "fleet.siblings",
        "every device has enough siblings",
        "Fewer than five nodes have this model, so they are not compared with each other.",
        "gpucheck bench matmul --min-percent-of-peak 80 judges by the data sheet",
    ),
    Id(
        "fleet.modes",
        "nodes of one model have one speed",
        "More than a quarter of the nodes are slower than the others, with a gap between the two groups. The probable "
        "cause is a setting that differs, such as a power limit or a driver. fleet.drift lists the differences.",
        "give all nodes the same settings, then check again",
    ),
    Id(
        "fleet.drift",
        "nodes have the same driver, firmware, torch and settings",
        "Some nodes differ from most. Nodes with the same values are in one finding.",
        "use one version, or judge them as two fleets",
    ),
    Id(
        "fleet.impossible",
        "no figure is above the GPU's peak",
        "A rate is far above the GPU's peak: the clock, the document or the benchmark is wrong.",
        "run the check again on that node",
    ),
    Id(
        "fleet.duplicate",
        "one document for each node and attempt",
        "Several documents name the same node and attempt. The latest document is judged.",
        "use a new --run ID for each start",
    ),
    Id(
        "fleet.unexpected",
        "only expected nodes left documents",
        "A node that is not in --expect left a document.",
        "correct the list, or the folder",
    ),
    Id("fleet.old", "no document of an earlier start", "Documents are hours older than others.", "use a new --run ID"),
    Id("fleet.other_run", "documents of one run", "Documents of other runs are left out.", "give the ID with --run"),
    Id(
        "fleet.forged",
        "documents are their node's own",
        "Owner, file name and the host inside do not match.",
        "find out who wrote the document; the node in its file name is undecided if it has no other document",
    ),
    Id(
        "fleet.unreadable",
        "documents can be read",
        "A document is cut off, too large, too deeply nested, or not from gpucheck. Its node is silent.",
        "run the check again on that node",
    ),
)
IDS = (*_CHECK, *_JUDGE)
