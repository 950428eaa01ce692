"""The ids of the findings of `fleet check` and `fleet judge`, and what each stands for. Pure."""

from __future__ import annotations

from gpucheck.report.finding import Id, of

_CHECK = of(
    "fleet check",
    Id("fleet.node", "this node is good", "Nothing that was checked on it failed or stayed open."),
    Id(
        "fleet.part",
        "every part of the check came to its end",
        "A part ran out of its time, ended early or could not be read: its cause stands beside it.",
        "run that part alone, with the command that the finding names",
    ),
    Id(
        "fleet.rank",
        "one rank of a node checks it",
        "Another rank on this node holds the lock and writes the document.",
    ),
    Id(
        "fleet.devices",
        "the node has its GPUs",
        "No GPU was found on the node, or not as many as --devices says that it must have.",
        "gpucheck doctor; --devices 0 for a node without GPUs",
    ),
)
_JUDGE = of(
    "fleet judge",
    Id(
        "fleet.nodes",
        "no node is bad or silent",
        "Nodes failed their check, left no document, or stand out from their siblings.",
        "drain the nodes of bad.txt; each has its cause and its command",
    ),
    Id(
        "fleet.suspect",
        "few enough nodes are bad",
        "More than --max-bad are: the check itself, a driver or a shared service is the likelier cause. Nobody is "
        "drained.",
        "look at one of them by hand; raise --max-bad if they are bad indeed",
    ),
    Id(
        "fleet.siblings",
        "every device has enough siblings",
        "Fewer than five nodes have the same model: nothing is said of how fast it should be.",
        "gpucheck bench matmul --min-percent-of-peak 80 judges by the data sheet",
    ),
    Id(
        "fleet.modes",
        "nodes of one model have two speeds",
        "At least three nodes and a tenth on a side, with a gap between them. A setting that both sides record "
        "differently, such as a power cap or a driver, is named as the likely cause.",
        "give all nodes the same settings, then check again",
    ),
    Id(
        "fleet.drift",
        "nodes have the same driver, firmware, torch and settings",
        "Some differ; those that share a value are named together.",
        "bring them to one version, or judge them as two fleets",
    ),
    Id(
        "fleet.impossible",
        "no figure is beyond what the part can do",
        "A rate far above the part's peak: the clock, the document or the benchmark is wrong.",
        "run the check again on that node",
    ),
    Id(
        "fleet.duplicate",
        "one document for each node and attempt",
        "Several claim the same; the latest is judged.",
        "give each start its own --run",
    ),
    Id(
        "fleet.unexpected",
        "only expected nodes left documents",
        "A node that --expect does not name left one.",
        "correct the list, or the folder",
    ),
    Id("fleet.old", "no document of an earlier start", "It has this run's id and is older.", "a --run ID of its own"),
    Id("fleet.other_run", "documents of one run", "Those of other runs in the folder are left out.", "--run ID"),
    Id(
        "fleet.renamed",
        "a GPU has one node",
        "The same GPU's UUID comes under several host names: the host was renamed, or the GPU was moved.",
        "remove the old document",
    ),
    Id(
        "fleet.same_boot",
        "a machine has one name",
        "The same boot came under several names: containers of one machine, often.",
    ),
    Id(
        "fleet.forged",
        "documents are their node's own",
        "Owner, file name and host inside do not fit together.",
        "see who wrote it; the node counts as silent",
    ),
    Id(
        "fleet.unreadable",
        "documents can be read",
        "Cut off, too large, too deep, or no document of gpucheck.",
        "run the check again on that node",
    ),
)
IDS = (
    *_CHECK,
    *_JUDGE,
)
