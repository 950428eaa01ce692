"""`gpucheck --show-completion SHELL`: a script that completes commands, options and their values.

It is made from the same declarations as the help pages and holds them all, so completing starts no Python.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from gpucheck.options import Option

# What `--device` mostly gets; an index or a UUID is typed.
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "all")
# Values that are files.
FILES = ("FILE", "PATH", "TARGET", "OLD", "NEW")
# What every help page has beside the declared options.
ALWAYS = ("--help",)
# What the program takes in the place of a command.
OF_THE_PROGRAM = ("--version", "--show-completion")

Parameters = Mapping[str, Sequence[Option]]


def values(one: Option) -> tuple[str, ...]:
    """Return the values of an option that takes one of a few words."""
    return DEVICES if one.name == "--device" else one.choices


def words(command: str, parameters: Parameters) -> list[str]:
    """Return the words that can follow a command."""
    return [*(one.name for one in parameters[command] if not one.positional), *ALWAYS]


def first(parameters: Parameters, group: str = "") -> list[str]:
    """The names below a group; of the program itself without one."""
    return list(dict.fromkeys(name.removeprefix(group).split()[0] for name in parameters if name.startswith(group)))


def groups(parameters: Parameters) -> list[str]:
    """The names that have commands below them."""
    return list(dict.fromkeys(name.split()[0] for name in parameters if " " in name))


def bash(parameters: Parameters) -> str:
    """For bash 3.2 and later."""
    at_once = " ".join([*first(parameters), *OF_THE_PROGRAM, *words("status", parameters)])
    after = [
        f"        {shlex.quote(f'{command}:{one.name}')}) words={shlex.quote(' '.join(values(one)))} ;;"
        for command, rows in parameters.items()
        for one in rows
        if values(one)
    ]
    takes = sorted({one.name for rows in parameters.values() for one in rows if not one.positional and not one.is_flag})
    listed = {one.name for rows in parameters.values() for one in rows if values(one)}
    free = [name for name in takes if name not in listed]
    below = [
        f"            {name}) words={shlex.quote(' '.join([*first(parameters, f'{name} '), *ALWAYS]))} ;;"
        for name in groups(parameters)
    ]
    of_command = [
        f"        {shlex.quote(command)}) words={shlex.quote(' '.join(words(command, parameters)))} ;;"
        for command in parameters
    ]
    return "\n".join(
        [
            "_gpucheck() {",
            '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            '    local command="${COMP_WORDS[1]}" depth=1 words=""',
            f'    case "$command" in {"|".join(groups(parameters))})',
            '        command="$command ${COMP_WORDS[2]}"; depth=2 ;;',
            "    esac",
            '    if [ "$COMP_CWORD" -le "$depth" ]; then',
            f"        words={shlex.quote(at_once)}",
            '        if [ "$COMP_CWORD" = 2 ]; then case "${COMP_WORDS[1]}" in',
            *below,
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


def zsh(parameters: Parameters) -> str:
    """For zsh, by the same words: `eval "$(gpucheck --show-completion zsh)"`."""
    return "\n".join(
        [
            "#compdef gpucheck",
            "autoload -Uz bashcompinit && bashcompinit",
            bash(parameters),
        ]
    )


def fish(parameters: Parameters) -> str:
    """For fish 3 and later."""
    lines = ["complete -c gpucheck -f"]
    lines += [f"complete -c gpucheck -n __fish_use_subcommand -l {name[2:]}" for name in OF_THE_PROGRAM]
    for name in first(parameters):
        lines.append(f"complete -c gpucheck -n __fish_use_subcommand -a {name}")
    for group in groups(parameters):
        names = first(parameters, f"{group} ")
        condition = f"'__fish_seen_subcommand_from {group}; and not __fish_seen_subcommand_from {' '.join(names)}'"
        lines += [f"complete -c gpucheck -n {condition} -a {name}" for name in names]
    for command, rows in parameters.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        seen = f"__fish_use_subcommand; or {seen}" if command == "status" else seen
        for one in rows:
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


SHELLS: dict[str, Callable[[Parameters], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
