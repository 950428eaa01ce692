"""Which layout a command has, and that no other comes with it."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest

from gpucheck.cli import app, commands
from gpucheck.render import explain, text
from gpucheck.render.text import ADVICE, TextLine
from gpucheck.report.events import Judged
from gpucheck.report.finding import Finding
from gpucheck.report.report import Collector, Report


def test_every_command_that_reports_has_a_layout() -> None:
    assert app.app is not None  # its import adds the commands
    # What `judge` is given is shown as what it is.
    assert set(text.LAYOUTS) == set(commands.names()) - {"schema", "judge"}
    for place in text.LAYOUTS.values():
        assert callable(resolve_name(f"gpucheck.render.{place}"))


def with_fix(fix: str, typed: str) -> str:
    """The advice on the screen, of a command that was typed like this."""
    collector, argv = Collector(), tuple(typed.split())
    collector(Judged(Finding("collective.ranks", "skip", "1 GPU for 2 ranks", fix=fix)))
    made: Report = collector.report(
        version="0", command=" ".join(argv[:2]), argv=argv, started="", elapsed_s=1.0, code=3
    )
    return next(one.text for one in text.blocks(made) if isinstance(one, TextLine) and one.text.startswith(ADVICE))


@pytest.mark.parametrize(
    ("fix", "typed", "advice"),
    [
        ("--device cpu", "bench collective", "gpucheck bench collective --device cpu"),
        (
            "--device cpu",
            "bench collective --device cuda --ranks 2",
            "gpucheck bench collective --ranks 2 --device cpu",
        ),
        # How the result was shown is no part of what to do.
        (
            "--time-budget 5m",
            "bench collective --debug --json --quiet -v --verbose --output a.json --strict",
            "gpucheck bench collective --strict --time-budget 5m",
        ),
        ("--only both_ways,on_device", "bench transfer", "gpucheck bench transfer --only both_ways,on_device"),
        # Sentences.
        ("--device cpu measures processes on the host", "bench collective", None),
        ("--device cpu; then again", "bench collective", None),
        ("--fp16 in place of --bf16", "bench collective", None),
    ],
)
def test_a_fix_that_is_an_option_is_shown_as_the_whole_command(fix: str, typed: str, advice: str | None) -> None:
    assert with_fix(fix, typed) == f"{ADVICE}{advice or fix}"


def test_what_several_devices_share_is_said_once_and_with_every_one_of_them() -> None:
    alike = [
        Finding(
            "stress.slow",
            "fail",
            f"cuda:{n}: 9 % slower",
            "heat",
            {},
            f"gpucheck devices --device cuda:{n}",
            f"cuda:{n}",
        )
        for n in range(3)
    ]
    other = Finding("stress.slow", "fail", "cuda:3: 9 % slower", "power", {}, None, "cuda:3")
    assert [line.text for line in text.finding_lines([*alike, other])] == [
        "✗ cuda:0 to cuda:2  9 % slower: heat",
        "→ gpucheck devices --device cuda:0 (and 2 more, each by its own address)",
        "✗ cuda:3: 9 % slower: power",
    ]


@pytest.mark.parametrize(
    "step",
    [
        'cmake -B build "-DARCHITECTURES=120;89"',
        "ARCH=8.9;8.6 pip install .",
        "python -c 'import a; b()'",
        "(one; two) x",
    ],
)
def test_a_semicolon_within_a_value_ends_no_step(step: str) -> None:
    assert [line.text for line in explain._steps(f"{step}; else a wheel")] == [
        f"{ADVICE}{step}",
        f"{ADVICE}else a wheel",
    ]
