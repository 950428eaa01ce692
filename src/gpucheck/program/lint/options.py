"""Options of `lint`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import naming
from gpucheck.errors import UsageError
from gpucheck.options import list_all, only, option, skip
from gpucheck.program.lint.rules import RULES, Rule


@dataclass(frozen=True, slots=True)
class LintOptions:
    """The user's options. `only` and `skip` are prefixes of rule ids."""

    paths: tuple[str, ...] = option(
        "Files and folders with Python source; - reads standard input. [default: .]",
        name="PATH",
        metavar="[PATH...]",
        positional=True,
        repeat=True,
        commas=False,
    )
    only: tuple[str, ...] = only("rules", named="ID")
    skip: tuple[str, ...] = skip("rules", named="ID")
    list_all: bool = list_all("rules")

    @property
    def rules(self) -> list[Rule]:
        """The rules to judge by. Raises UsageError for a prefix that fits none, and where nothing is left."""
        return naming.select(
            RULES,
            lambda rule: rule.id,
            self.only,
            self.skip,
            noun="rule",
            nothing="nothing would be checked",
        )

    def names(self) -> list[tuple[str, str]]:
        """The selected rules with their titles."""
        return [(rule.id, rule.title) for rule in self.rules]

    def check(self) -> None:
        """Raises UsageError for what does not go together."""
        self.rules  # noqa: B018
        if self.list_all and self.paths:
            raise UsageError("--list takes no path", "", "leave one of them out")
