"""Text in one form: what is taken away, and what a line is."""

from __future__ import annotations

import random

import pytest

from gpucheck.explain.match import normalise


@pytest.mark.parametrize(
    "pasted",
    [
        "Error: it broke",
        "\x1b[1;31mError:\x1b[0m it broke",
        "[1;31mError:[0m it broke",
        "\x1b]8;;https://example.org\x07Error:\x1b]8;;\x07 it broke",
        "[rank3]: Error: it broke",
        "[rank3]:[E321 02:07:08.408271257 x.cpp:607] Error: it broke",
        "2026-01-31T12:00:00.123Z Error: it broke",
        "[2026-01-31 12:00:00,123][ERROR][trainer.py:10] - Error: it broke",
        "2026-01-31 12:00:00 | ERROR | Error: it broke",
        "CRITICAL:root:Error: it broke",
        "(RayWorker pid=4009, ip=10.0.0.3) Error: it broke",
        "> > Error: it broke",
        "E       Error: it broke",
        "[1,3]<stderr>:Error: it broke",
        "Jan 31 12:00:00 node7 kernel: [ 1843.308145] Error: it broke",
        "trainer-1  | Error: it broke",
        "│ Error: it broke       │",
        "  | Error: it broke",
        "Er\u200bror: it\u00a0broke",
        "Error: it\nbroke",
        "Err\nor: it bro\r\nke",
        "&quot;Error: it broke&quot;",
        "'Error: it' `broke`",
        '\\"Error: it\\nbroke\\"',
        "Error:%20it%20broke%0A%20",
        "&amp;quot;Error: it broke&amp;quot;",
        "\\u0027Error: it broke\\u0027",
        "01-31 12:00:00 Error: it broke",
        "[Sat Jan 31 12:00:00 2026] Error: it broke",
        "E external/xla/gpu_executor.cc:12] Error: it broke",
        "#12 3.141 Error: it broke",
        "stderr F Error: it broke",
        "[2026-01-31 12:00:00 TP0] Error: it broke",
        "╭── x ──╮\n│ Error: it broke │\n╰───────╯".replace("x", ""),
    ],
)
def test_what_is_around_a_text_is_taken_away(pasted: str) -> None:
    assert normalise(pasted).solid == "error:itbroke"


def test_the_two_forms_are_of_the_same_characters_and_know_their_lines() -> None:
    chance = random.Random(7)
    letters = "aB \t'\"`İß│\x1b[0m\n\r→19:"
    for _ in range(500):
        pasted = "".join(chance.choice(letters) for _ in range(chance.randrange(80)))
        normal = normalise(pasted)
        assert "".join(normal.spaced.split()) == normal.solid
        for offset, letter in enumerate(normal.spaced):
            if letter not in " \n":
                at = normal.solid_offset(offset)
                assert normal.solid[at] == letter
                (line,) = normal.lines_of(at, at + 1)
                assert letter in "".join(line.text.split()).lower()


def test_what_a_line_is_and_to_which_traceback_it_belongs() -> None:
    pasted = """step 1
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    f()
ValueError: one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    g()
torch.OutOfMemoryError: two
Traceback (most recent call last):
KeyError
"""
    lines = {line.text: (line.kind, line.group) for line in normalise(pasted).lines}
    assert lines["step 1"] == ("plain", 0)
    assert lines["f()"] == lines['File "a.py", line 1, in <module>'] == ("frame", 1)
    assert lines["ValueError: one"] == ("exception", 1)
    assert lines["torch.OutOfMemoryError: two"] == ("exception", 1)
    assert lines["KeyError"] == ("exception", 2)


def test_a_path_of_windows_keeps_its_letters() -> None:
    assert "c:\\new\\torch" in normalise(r"OSError: C:\new\torch").solid
    assert normalise("it\\nbroke").spaced == "it\nbroke"


@pytest.mark.parametrize(
    ("pasted", "kind"),
    [
        ("[2026-01-31 12:00:00,123] [INFO] [trainer.py:88] step", "quiet"),
        ("DEBUG:torch:step", "quiet"),
        ("I0131 12:00:00.000000 411 client.cpp:12] step", "quiet"),
        ("-- Found CUDA: step", "quiet"),
        (">>> torch.cuda.is_available()", "quiet"),
        ("(venv) user@host:~$ nvidia-smi", "quiet"),
        ("PS C:\\work> nvidia-smi", "quiet"),
        ("[2026-01-31 12:00:00,123] [ERROR] [trainer.py:88] step", "plain"),
        ("W0131 12:00:00.000000 411 client.cpp:12] step", "plain"),
        ("> quoted", "plain"),
        ("terminate called after throwing an instance of 'c10::Error'", "exception"),
        ("triton.runtime.errors.OutOfResources: out of resource", "exception"),
    ],
)
def test_what_a_single_line_is(pasted: str, kind: str) -> None:
    assert [line.kind for line in normalise(pasted).lines] == [kind]


def test_what_nccl_tries_is_left_out() -> None:
    assert normalise("node1:1:1 [0] NCCL INFO it broke\nnode1:1:1 [0] NCCL WARN it works").solid.count("it") == 1


def test_the_lines_over_which_a_text_reaches() -> None:
    normal = normalise("one\ntwo\n\nthree")
    start = normal.solid.index("wo")
    assert [line.number for line in normal.lines_of(start, start + 1)] == [2]
    assert [line.number for line in normal.lines_of(start, start + 4)][-1] == 4


def test_jsons_escapes_of_any_letter_are_that_letter() -> None:
    assert normalise("it couldn\\u2019t, \\u9875\\u9762 and \\u0027so\\u0027").spaced == "it couldnt, 页面 and so"
    assert normalise("half of a pair: \\ud83d").spaced == "half of a pair: \\ud83d"
