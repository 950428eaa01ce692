"""`gpucheck lint`, and docs/lint.md, which is made from its rules."""

from __future__ import annotations

from gpucheck.cli.common import Common
from gpucheck.program.lint.options import LintOptions
from gpucheck.program.lint.rules import RULES, Rule


def lint(common: Common, options: LintOptions) -> int:
    """Find the lines of source that are device mistakes.

    It reads source and runs nothing.
    """
    from gpucheck.cli import session
    from gpucheck.program.lint.command import command

    return session.run(common, lambda emit: command(options, emit))


def page() -> str:
    """docs/lint.md, whole."""
    parts = [
        "# Device mistakes in source",
        "Made by `scripts/docs` from the rules of `gpucheck lint`. It reads source and runs nothing. What it cannot "
        "know it leaves alone: the `.to()` of an unknown object is no finding.",
        "    gpucheck lint .                                # folders are searched for *.py\n"
        "    gpucheck lint train.py --output lint.sarif     # for code hosts and editors\n"
        "    git show HEAD:train.py | gpucheck lint -",
        "A mistake is `fail` and exits 1. What costs only time is `info` and exits 0; `gpucheck run` measures it. A "
        "file that Python cannot parse is `inconclusive` and exits 4 unless something fails. "
        "`# gpucheck: ignore[ID]` on the line ignores one rule, `# gpucheck: ignore` all of them; `--only` and "
        "`--skip` take prefixes of IDs. Notebooks are not read: convert them to scripts. Under GitHub Actions each "
        "mistake is also an annotation of its line.",
        "With pre-commit:",
        "```yaml\nrepos:\n  - repo: URL of this repository\n    rev: a tag\n    hooks:\n      - id: gpucheck-lint\n```",
        *(part for rule in RULES for part in _entry(rule)),
    ]
    return "\n\n".join(parts) + "\n"


def _entry(rule: Rule) -> list[str]:
    return [
        f"## {rule.id}",
        f"{rule.title[0].upper()}{rule.title[1:]} ({rule.verdict}). {rule.meaning}",
        f"Wrong:\n\n```python\n{rule.wrong}```",
        f"Right:\n\n```python\n{rule.right}```",
    ]
