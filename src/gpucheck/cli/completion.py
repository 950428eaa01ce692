"""`gpucheck --show-completion SHELL`: a script that completes commands, options and their values.

It is made from the same declarations as the help pages and holds them all, so completing starts no Python.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from gpucheck.cli.commands import COMMANDS, below, names, parameters
from gpucheck.options import Option

# What `--device` mostly gets; an index or a UUID is typed.
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "all")
# Values that are files.
FILES = ("FILE", "PATH", "TARGET", "OLD", "NEW")
# What the program takes in the place of a command.
OF_THE_PROGRAM = ("--version", "--show-completion")

# Those that have commands below them.
GROUPS = tuple(row.name for row in COMMANDS if row.commands)


def values(one: Option) -> tuple[str, ...]:
    """Return the values of an option that takes one of a few words."""
    return DEVICES if one.name == "--device" else one.choices


def words(command: str) -> list[str]:
    """Return the words that can follow a command."""
    return [*(one.name for one in parameters(command) if not one.positional), "--help"]


def bash() -> str:
    """For bash 3.2 and later."""
    at_once = " ".join([*below(), *OF_THE_PROGRAM, *words("status")])
    taken = [(command, one) for command in names() for one in parameters(command)]
    after = [
        f"        {shlex.quote(f'{command}:{one.name}')}) words={shlex.quote(' '.join(values(one)))} ;;"
        for command, one in taken
        if values(one)
    ]
    listed = {one.name for _, one in taken if values(one)}
    free = sorted({one.name for _, one in taken if not one.positional and not one.is_flag} - listed)
    of_group = [f"            {name}) words={shlex.quote(' '.join([*below(name), '--help']))} ;;" for name in GROUPS]
    of_command = [
        f"        {shlex.quote(command)}) words={shlex.quote(' '.join(words(command)))} ;;" for command in names()
    ]
    return "\n".join(
        [
            "_gpucheck() {",
            '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            '    local command="${COMP_WORDS[1]}" depth=1 words=""',
            f'    case "$command" in {"|".join(GROUPS)})',
            '        command="$command ${COMP_WORDS[2]}"; depth=2 ;;',
            "    esac",
            '    if [ "$COMP_CWORD" -le "$depth" ]; then',
            f"        words={shlex.quote(at_once)}",
            '        if [ "$COMP_CWORD" = 2 ]; then case "${COMP_WORDS[1]}" in',
            *of_group,
            "        esac; fi",
            '        COMPREPLY=($(compgen -W "$words" -- "$word"))',
            "        return",
            "    fi",
            '    case "$command:$before" in',
            *after,
            f'        {"|".join(f"*:{name}" for name in free)}) COMPREPLY=($(compgen -f -- "$word")); return ;;',
            "    esac",
            '    if [ -z "$words" ]; then case "$command" in',
            *of_command,
            "    esac; fi",
            '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
            '    case "$word" in -*) ;; *) [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "$word")) ;; esac',
            "}",
            "complete -o filenames -F _gpucheck gpucheck",
            "",
        ]
    )


def zsh() -> str:
    """For zsh, by the same words: `eval "$(gpucheck --show-completion zsh)"`."""
    return f"#compdef gpucheck\nautoload -Uz bashcompinit && bashcompinit\n{bash()}"


def fish() -> str:
    """For fish 3 and later."""
    lines = ["complete -c gpucheck -f"]
    lines += [f"complete -c gpucheck -n __fish_use_subcommand -l {name[2:]}" for name in OF_THE_PROGRAM]
    lines += [f"complete -c gpucheck -n __fish_use_subcommand -a {name}" for name in below()]
    for group in GROUPS:
        inside = below(group)
        condition = f"'__fish_seen_subcommand_from {group}; and not __fish_seen_subcommand_from {' '.join(inside)}'"
        lines += [f"complete -c gpucheck -n {condition} -a {name}" for name in inside]
    for command in names():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        seen = f"__fish_use_subcommand; or {seen}" if command == "status" else seen
        for one in parameters(command):
            if one.positional:
                lines += [f"complete -c gpucheck -n '{seen}' -F"] if one.metavar in FILES else []
                continue
            parts = [f"complete -c gpucheck -n '{seen}' -l {one.name.removeprefix('--')}"]
            if not one.is_flag:
                parts.append("-rF" if one.metavar in FILES else "-x")
            if values(one):
                parts.append(f"-a '{' '.join(values(one))}'")
            parts.append(f"-d {shlex.quote(one.help)}")
            lines.append(" ".join(parts))
    return "\n".join([*lines, ""])


SHELLS: dict[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
