"""Every text is known as it is printed and as people paste it, and ordinary logs are not taken for errors."""

from __future__ import annotations

import collections
import itertools
import random
import re
import textwrap

import pytest
from explain_corpus import entries
from pasted import INNOCENT, MORE, NOT_OURS, SAMPLES

from gpucheck import messages, xid
from gpucheck.batch_size import outcome
from gpucheck.doctor.ladder import BY_ID, CONDITIONS
from gpucheck.explain import command
from gpucheck.explain.command import OF_CONDITIONS, PAGES, TEXTS, own_words
from gpucheck.explain.match import QUOTES, compiled, find
from gpucheck.report.events import Answered, Event, Notice

# The seed of what is pasted; any other serves as well.
SEED = 20260131


def answer(pasted: str) -> str | None:
    """The id of what a text means; None where it is not known."""
    found = find(pasted, TEXTS, OF_CONDITIONS)
    return found[0].text.id if found else None


def test_the_table_is_whole() -> None:
    ids = [text.id for text in TEXTS] + [condition.id for condition in CONDITIONS] + list(PAGES)
    twice = [name for name, count in collections.Counter(ids).items() if count > 1]
    assert twice == []
    assert len(TEXTS) >= 60
    for text in TEXTS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+", text.id)
        assert (text.patterns or text.common or text.weak) and text.title and text.meaning.endswith(".") and text.fix, (
            text.id
        )
        assert not text.title.endswith("."), text.id
        assert all(name in BY_ID for name in text.conditions), text.id
        others = [name for name in (*ids, *(f"xid.{number}" for number in xid.BY_NUMBER)) if name != text.id]
        for beginning in text.follows:
            assert any(name.startswith(beginning) for name in others), (text.id, beginning)
        assert all(compiled(source) for source in (text.beside, text.unless) if source), text.id


def test_every_text_has_a_sample() -> None:
    assert set(SAMPLES) == {text.id for text in TEXTS}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_text_as_it_is_printed(name: str) -> None:
    assert answer(SAMPLES[name]) == name


@pytest.mark.parametrize(("name", "pasted"), MORE)
def test_another_wording(name: str, pasted: str) -> None:
    assert answer(pasted) == name


@pytest.mark.parametrize("pasted", INNOCENT)
def test_an_ordinary_line_means_nothing(pasted: str) -> None:
    assert answer(pasted) is None


@pytest.mark.parametrize(
    "pasted",
    [
        "Cannot use GPU 7: only 4 GPUs",
        "torch cannot use gpu memory",
        "torch can't find cuda toolkit",
        "no cuda 12 wheels found",
        "ValueError: fp16 mixed precision requires a GPU (not 'mps').",
        "torch 2.6\nMemoryError: the search over batches gave none that works",
    ],
)
def test_a_gpu_that_is_there_is_not_said_to_be_missing_or_elsewhere(pasted: str) -> None:
    assert answer(pasted) is None


@pytest.mark.parametrize("pasted", NOT_OURS)
def test_what_other_programs_print_means_nothing(pasted: str) -> None:
    assert answer(pasted) is None


@pytest.mark.parametrize("pasted", NOT_OURS)
def test_neither_does_any_part_of_it(pasted: str) -> None:
    """Cut at either end, a word at a time: what is left is still another program's."""
    words = pasted.split(" ")
    for number in range(1, len(words)):
        for part in (words[number:], words[:number]):
            first = next(iter(find(" ".join(part), TEXTS, OF_CONDITIONS)), None)
            # "Out of memory" alone, a killed process that nobody names, an error on a bus: who typed it means a GPU's
            # as likely as not.
            assert first is None or (first.certainty, first.text.id) in {
                ("hint", "oom.other"),
                ("hint", "kernel.pcie"),
            }, part


def test_ordinary_lines_mean_nothing_together() -> None:
    assert len(INNOCENT) >= 30
    assert answer("\n".join(INNOCENT)) is None


def test_the_texts_of_every_condition_can_be_tried() -> None:
    """Conditions are written by others: their patterns have to stand the squeezing too."""
    for condition in CONDITIONS:
        for source in condition.patterns:
            assert compiled(source).regex.pattern


def test_a_module_below_torch_is_not_a_missing_torch() -> None:
    (found,) = find("ModuleNotFoundError: No module named 'torch._C'", TEXTS, OF_CONDITIONS)
    assert found.conditions == ("torch.shadowed",)


def test_apples_mps_and_cudas_are_told_apart_by_their_titles() -> None:
    """Metal Performance Shaders and the Multi-Process Service have one short name, and ids that begin alike."""
    apples = [text for text in TEXTS if text.id.startswith(("mps.", "oom.mps"))]
    cudas = [condition for condition in CONDITIONS if condition.id.startswith("mps.")]
    assert len(apples) >= 5 and len(cudas) == 2
    assert all("Metal" in text.title and "MPS" not in text.title for text in apples)
    assert all("MPS server" in cuda.title and "Metal" not in cuda.title for cuda in cudas)


def test_each_answer_of_mps_points_to_its_condition() -> None:
    texts = {
        "Error 806: the remote procedural call between the MPS server and the MPS client failed": "mps.unreachable",
        "Error 807: MPS server is not ready to accept new MPS client requests": "mps.not_ready",
        "Error 809: the hardware resources required to support device connections have been exhausted": "mps.not_ready",
        "Error 810: the MPS client has been terminated by the server": "mps.not_ready",
    }
    for pasted, condition in texts.items():
        (found,) = find(pasted, TEXTS, OF_CONDITIONS)
        assert (found.text.id, found.conditions) == ("cuinit.mps", (condition,))


# --- as people paste it -----------------------------------------------------------------------------------------------

PREFIXES = (
    "[rank3]: ",
    "[default0]:",
    "2026-01-31T12:00:00.123456Z ",
    "2026-01-31 12:00:00,123 - ERROR - ",
    "[2026-01-31 12:00:00,123][ERROR][trainer.py:10] - ",
    "ERROR:root:",
    "[ERROR] ",
    "(RayWorkerWrapper pid=4009, ip=10.0.0.3) ",
    "\x1b[36m(RayWorker pid=4009)\x1b[0m ",
    "> ",
    "> > ",
    "E       ",
    "[1,3]<stderr>:",
    "3: ",
    "trainer-1  | ",
    "[ 1843.308145] ",
    "Jan 31 12:00:00 node7 kernel: ",
    "12:00:00 ",
    "| ",
)


def colour(text: str, chance: random.Random) -> str:
    """Some words in colour, the escape character kept, written out or lost."""
    escape = chance.choice(("\x1b", "^[", ""))
    words = text.split(" ")
    for _ in range(1 + len(words) // 4):
        at = chance.randrange(len(words))
        words[at] = f"{escape}[1;31m{words[at]}{escape}[0m"
    return " ".join(words)


def wrap(text: str, chance: random.Random) -> str:
    """Broken at spaces, or in the midst of words, as a mail program or a terminal does it."""
    width = chance.choice((40, 60, 72, 80))
    lines: list[str] = []
    for line in text.split("\n"):
        if chance.random() < 0.5:
            lines += textwrap.wrap(line, width, break_long_words=True) or [""]
        else:
            lines += [line[at : at + width] for at in range(0, len(line), width)] or [""]
    return "\n".join(lines)


def box(text: str) -> str:
    """As rich draws a traceback around it."""
    width = max(len(line) for line in text.split("\n")) + 2
    middle = [f"│ {line:<{width}} │" for line in text.split("\n")]
    return "\n".join(["╭" + "─" * width + "╮", *middle, "╰" + "─" * width + "╯"])


def prefix(text: str, chance: random.Random) -> str:
    before = chance.choice(PREFIXES)
    return "\n".join(before + line for line in text.split("\n"))


def amid(text: str, chance: random.Random) -> str:
    """Between lines of an ordinary log."""
    lines = chance.sample([line for line in INNOCENT if not re.match(r"\w+Error: ", line)], 6)
    return "\n".join([*lines[:3], text, *lines[3:]])


def is_by_word(name: str) -> bool:
    """Whether a text is read by words, and by no pattern that knows it without its spaces too."""
    spaced = " ".join(SAMPLES[name].lower().translate(str.maketrans("", "", QUOTES)).split())
    text = next(text for text in TEXTS if text.id == name)
    patterns = [compiled(source) for source in (*text.patterns, *text.weak)]
    by_word = [pattern for pattern in patterns if pattern.by_word and pattern.regex.search(spaced)]
    return bool(by_word) and not any(
        pattern.regex.search(spaced.replace(" ", "")) for pattern in patterns if not pattern.by_word
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_a_text_as_it_is_pasted(name: str) -> None:
    """Wrapped, coloured, prefixed, boxed and between other lines, in many ways: the same answer."""
    chance = random.Random(f"{SEED} {name}")
    for number in range(1 if name.startswith("xid.") else 5):
        pasted = SAMPLES[name]
        # What is read by words is told from other words by them: broken within one it is another.
        steps = ["colour", "box", "prefix", "amid", *([] if is_by_word(name) else ["wrap"])]
        chance.shuffle(steps)
        wanted = [step for step in steps if chance.random() < 0.6]
        if "wrap" in wanted:
            pasted = wrap(pasted, chance)
        if "colour" in wanted:
            pasted = colour(pasted, chance)
        if "box" in wanted and "colour" not in wanted:
            pasted = box(pasted)
        if "prefix" in wanted:
            pasted = prefix(pasted, chance)
        if "amid" in wanted:
            pasted = amid(pasted, chance)
        assert answer(pasted) == name, (number, wanted, pasted)


@pytest.mark.slow
def test_an_xid_is_known_wherever_a_terminal_breaks_its_line() -> None:
    said = "[88123.1] NVRM: Xid (PCI:0000:b3:00.0): 79, pid=4711, GPU has fallen off the bus."
    for width in range(12, len(said)):
        broken = "\n".join(said[at : at + width] for at in range(0, len(said), width))
        assert answer(broken) == "xid.79", broken
    assert answer("NVRM: Xid (PCI:0000:b3:00.0): 9\n99, pid=4711") == "xid.unknown"


def test_an_xid_without_a_row_is_known_in_the_log_of_a_kernel_alone() -> None:
    # Neither the driver's name nor another word of ours stands beside it.
    line = "Jan 01 12:00:00 node7 kernel: Xid (PCI:0000:b3:00): 999, pid=4711, channel 12\n"
    assert answer(line * 2) == "xid.unknown"


def test_of_a_text_of_which_the_end_is_read_both_sizes_are_told_apart() -> None:
    events: list[Event] = []
    command.explain("CUDA out of memory", events.append, 3 * 2**19)
    assert [event.text for event in events if isinstance(event, Notice)] == ["1.5 MiB given; only the last 1 MiB read"]


@pytest.mark.parametrize("said", ["SageAttention fails to work on RTX 5090", "flash_attn does not run on my H100"])
def test_a_package_that_does_not_work_is_a_hint_of_its_installation(said: str) -> None:
    (match,) = find(said, TEXTS)
    assert (match.text.id, match.certainty) == ("attention.package", "hint")


def test_the_library_that_is_missing_is_searched_for_by_its_name() -> None:
    said = "OSError: libcublasLt.so.12: cannot open shared object file: No such file or directory"
    parts: list[Event] = []
    command.explain(said, parts.append)
    (first,) = (row.value.matches[0] for row in parts if isinstance(row, Answered))
    assert (first.id, first.says) == ("import.library", "libcublasLt.so.12 is not found")
    assert "find / -name 'libcublasLt*' 2>/dev/null" in first.then


def test_a_torch_without_libuv_is_no_missing_rank() -> None:
    assert answer("DistStoreError: use_libuv was requested but PyTorch was built without libuv support") == "dist.libuv"


def test_another_package_that_bitsandbytes_needs_is_not_its_library() -> None:
    needs = "ImportError: Using `bitsandbytes` 8-bit quantization requires {}"
    assert find(needs.format("Accelerate: `pip install 'accelerate>=0.26.0'`"), TEXTS) == []
    (match,) = find(needs.format("the latest version of bitsandbytes: `pip install -U bitsandbytes`"), TEXTS)
    assert match.text.id == "bitsandbytes.setup"


# --- what is first ----------------------------------------------------------------------------------------------------

XID_45 = "NVRM: Xid (PCI:0000:b3:00): 45, pid=7, name=python, Ch 00000008, caused by previous Xid 149"


@pytest.mark.parametrize(
    ("pasted", "order"),
    [
        (XID_45, ["xid.149", "xid.45"]),
        ("NVRM: Xid (PCI:0000:b3:00): 45, pid=7, Ch 8\nNVRM: Xid (PCI:0000:b3:00): 48, pid=7", ["xid.48", "xid.45"]),
        ("NVRM: Xid (PCI:0000:b3:00): 171, x\nNVRM: Xid (PCI:0000:b3:00): 48, pid=7", ["xid.48", "xid.171"]),
        (
            "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
            ["nvml.mismatch", "container.cli"],
        ),
        (
            "error: subprocess-exited-with-error\n  × Getting requirements to build wheel did not run successfully.\n"
            "      ModuleNotFoundError: No module named 'torch'\nERROR: Failed to build 'flash-attn'\n"
            "hint: --no-build-isolation",
            ["build.isolation"],
        ),
    ],
)
def test_what_brings_a_thing_about_comes_before_it(pasted: str, order: list[str]) -> None:
    assert [match.text.id for match in find(pasted, TEXTS, OF_CONDITIONS)][: len(order)] == order


# --- what is to be done -----------------------------------------------------------------------------------------------


def test_no_advice_is_only_to_run_this_tool() -> None:
    """Who reads a colleague's paste has not the machine."""
    for text in (*TEXTS, *OF_CONDITIONS):
        rest = re.sub(r"[^;.,]*\bgpucheck \w+[^;.,]*", "", text.fix)
        assert len(rest) > 12, (text.id, text.fix)


def test_the_allocators_setting_is_named_for_every_torch() -> None:
    """Versions from 2.9.0 read one name of it for CUDA, those before 2.9 the other."""
    for text in TEXTS:
        for setting in re.findall(r"PYTORCH_ALLOC_CONF\S*", text.fix):
            assert "PYTORCH_CUDA_ALLOC_CONF" in text.fix or "PYTORCH_HIP_ALLOC_CONF" in text.fix, (text.id, setting)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xid.13", "compute-sanitizer"),
        ("xid.31", "compute-sanitizer"),
        ("xid.63", "reset"),
        ("xid.94", "When its work is done"),
        ("container.cdi", "nvidia-ctk cdi generate"),
        ("hip.arch", "11.0.0"),
        ("hip.arch", "10.3.0"),
    ],
)
def test_the_step_names_what_helps(name: str, words: str) -> None:
    assert words in next(text for text in TEXTS if text.id == name).fix


def test_no_advice_replaces_torch_without_a_version() -> None:
    for text in TEXTS:
        assert not re.search(r"--force-reinstall torch(?![=<>~])", text.fix), text.id


# --- what is known elsewhere ------------------------------------------------------------------------------------------


ENDS_A_TRIAL = [*itertools.chain(*outcome.MESSAGES.values()), *outcome.SUSPECTED]


@pytest.mark.parametrize("pattern", ENDS_A_TRIAL, ids=lambda pattern: pattern[:30])
def test_what_ends_a_trial_is_explained_too(pattern: str) -> None:
    """Each message by which a search knows that a size is too large is in a sample here."""
    texts = [*SAMPLES.values(), *(pasted for _, pasted in MORE), *(entry.text for entry in entries("tune"))]
    assert any(re.search(pattern, text, re.IGNORECASE) and answer(text) for text in texts)


def test_the_patterns_are_spelled_once() -> None:
    assert messages.CPU_ALLOCATOR in next(text for text in TEXTS if text.id == "oom.cpu").patterns


def test_an_xid_tells_nvidias_action_in_plain_words() -> None:
    (match,) = find("NVRM: Xid (PCI:0000:b3:00.0): 94, pid=4711", TEXTS)
    assert match.text.fix.startswith("restart the affected program; other programs continue. When its work is done")
    assert {value.action for value in xid.BY_NUMBER.values()} <= set(xid.ACTIONS)
    assert len(xid.BY_NUMBER) == len(xid.CATALOGUE) + len(xid.OLDER)
    for entry in xid.BY_NUMBER.values():
        assert not any(name in entry.step for name in xid.ACTIONS if "_" in name), "no name of NVIDIA's tables"
        assert set(entry.follows) <= set(xid.BY_NUMBER) - {entry.number}


def test_a_reset_names_its_gpu_and_the_node_is_drained_first() -> None:
    """Also in every other advice: --gpu-reset alone resets all of them."""
    for text in TEXTS:
        for place in re.finditer("--gpu-reset", text.fix):
            assert text.fix[place.end() :].startswith(" -i "), text.id
            assert re.search("drain|when its work is done|with nothing running", text.fix[: place.start()]), text.id


def test_the_catalogue_is_as_long_as_nvidias() -> None:
    assert {*range(162, 174), 171, 172, 14, 106, 152} <= {row.number for row in xid.CATALOGUE}


def test_other_vendors_are_not_sent_to_nvidias_tools() -> None:
    """`explain oom.hip` prints the row as it is; NVML, which `gpucheck devices --processes` asks, lists no such GPU."""
    others = [text for text in TEXTS if re.match(r"(?:oom\.)?(?:hip|xpu|hpu)\b", text.id)]
    assert len(others) > 8
    assert [
        process.id for process in others if re.search(r"nvidia-smi|--processes|compute-sanitizer|CUDA_", process.fix)
    ] == []


@pytest.mark.parametrize(
    ("pasted", "error", "advice"),
    [
        (
            "building\nERROR: No supported gcc/g++ host compiler found.\n  Use 'nvcc -ccbin X' to specify one.\n",
            "ERROR: No supported gcc/g++ host compiler found.",
            "Use 'nvcc -ccbin X' to specify one",
        ),
        (
            "KeyError: 'a'\nValueError: no split. Please use disable_it=True.",
            "ValueError: no split.",
            "Please use disa",
        ),
        ("it was slow, please help", "", ""),
    ],
)
def test_an_unknown_text_is_answered_with_its_own_words(pasted: str, error: str, advice: str) -> None:
    found, advised = own_words(pasted)
    assert found.startswith(error) and advised.startswith(advice)
    assert bool(found) == bool(error) and bool(advised) == bool(advice)
