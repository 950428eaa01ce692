"""The kernel's log: Xid numbers, and a GPU that is gone without one."""

from __future__ import annotations

from gpucheck.health import xid
from gpucheck.health.explain.text import Text

_BLAMED = {
    "program": "mostly the program's mistake, not the card's",
    "device": "the card, its memory, its link or its firmware",
    "either": "it may be the program, the driver or the card",
}


# As people write it: told from other words by what stands around it, so that it has to be whole.
_IN_WORDS = r"\bXid ?(\(PCI:[0-9a-f:.]+\)|error|code|number)?:? ?(?P<number>\d+)(?!\d)\b"
# As the kernel writes it: known also where a terminal broke it within a word or a number, which the comma ends.
_IN_LOG = r"Xid \(PCI:[0-9a-f:.]+\): (?P<number>\d+)(,|(?!.))"


def _of_xid(one: xid.Xid) -> Text:
    action = xid.ACTIONS[one.action]
    return Text(
        id=f"xid.{one.number}",
        title=f"Xid {one.number}: {one.what}",
        patterns=(_IN_WORDS, _IN_LOG),
        number=str(one.number),
        meaning=f"What it speaks of: {_BLAMED[one.blame]}. NVIDIA's immediate action: {one.action}.",
        then=f"NVIDIA says: {action}",
        certainty="proof" if one.blame == "device" else "strong",
        source=xid.SOURCE,
    )


TEXTS: tuple[Text, ...] = (
    *(_of_xid(one) for one in xid.CATALOGUE),
    Text(
        "xid.unknown",
        "an Xid that has no row here",
        (r"\bXid ?(\(PCI:[0-9a-f:.]+\)|error|code|number)?:? ?\d+", _IN_LOG),
        "The driver noted an error with a number that NVIDIA's catalogue calls unused, or that is newer than this "
        "table.",
        f"look it up: {xid.SOURCE}",
        "hint",
        symptom=True,
    ),
    Text(
        "bus.installed",
        "a GPU has fallen off the bus (no Xid was written)",
        (r"installed in this system has (NVRM: ?)?fallen off the bus",),
        "The driver could not reach the card over PCIe as it started: power, heat, seat or riser, or the slot. Tools "
        "that look for Xid 79 alone do not see this line.",
        "power the machine off and on; then reseat the card and check its power",
        "proof",
        source="leptonai/gpud, kmsg.go; NVIDIA/NVSentinel issue 155",
    ),
    Text(
        "bus.off",
        "a GPU has fallen off the bus",
        (r"GPU .{0,60}has fallen off the bus", r"fallen off the bus and is not responding"),
        "The driver could not reach the card over PCIe: power, heat, seat or riser, or the slot.",
        "power the machine off and on; then reseat the card and check its power",
        "proof",
        source="leptonai/gpud, kmsg.go; NVIDIA/NVSentinel issue 155",
    ),
    Text(
        "kernel.rm_init",
        "the driver could not start a card",
        (r"RmInitAdapter failed",),
        "The card is on the bus and did not start: firmware, memory windows (Above 4G decoding, resizable BAR), "
        "power, or a card that needs the open kernel module.",
        "sudo dmesg | grep -i nvrm; then gpucheck doctor",
    ),
    Text(
        "kernel.pcie",
        "the PCIe link reports errors",
        (r"pcieport.{0,60}(AER|PCIe Bus Error).{0,80}(Uncorrect|Fatal)", r"PCIe Bus Error: severity=Uncorrect"),
        "The link lost data that it could not send again. The card may fall off the bus next.",
        "reseat the card, leave out the riser, and compare with `gpucheck bench transfer`",
    ),
)
