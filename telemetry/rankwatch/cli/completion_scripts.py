"""The completion scripts for bash, zsh and fish, from a description of the commands. Text in, text out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

JOBS: Final = "rankwatch completion --jobs 2>/dev/null"
"""What the scripts run to complete the id of a job."""
_OUR_WORDS: Final = ("--help", "--version")


@dataclass(frozen=True, slots=True)
class Values:
    """What a flag or a place takes: some words, files, ids of jobs, or anything."""

    words: tuple[str, ...] = ()
    files: bool = False
    jobs: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag with all its spellings; ``values`` is None when it takes none."""

    names: tuple[str, ...]
    words: str = ""
    values: Values | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One command, or one below another."""

    name: str
    words: str = ""
    flags: tuple[Flag, ...] = ()
    places: tuple[Values, ...] = ()
    below: tuple[Command, ...] = ()


def bash(commands: Sequence[Command]) -> str:
    """The script for bash. Without bash-completion's helpers, which are not installed everywhere."""
    names = " ".join([*(c.name for c in commands), *_OUR_WORDS])
    lines = [
        "# bash completion for rankwatch, made by 'rankwatch completion bash'",
        "_rankwatch_jobs() {  # not by compgen -W, which would expand, and so run, what an id holds",
        "    local job",
        '    while IFS= read -r job; do [[ $job == "$cur"* ]] && COMPREPLY+=("$(printf %q "$job")"); done < <('
        + JOBS
        + ")",
        "}",
        "_rankwatch() {",
        '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}"',
        "    COMPREPLY=()",
        '    if [ "$COMP_CWORD" -eq 1 ]; then',
        f'        COMPREPLY=($(compgen -W {shlex.quote(names)} -- "$cur"))',
        "        return",
        "    fi",
        "    # --flag=value reaches a function as three words",
        '    if [ "$cur" = "=" ]; then cur=""; elif [ "$prev" = "=" ]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi',
        '    case "$command" in',
    ]
    for command in commands:
        lines += [f"    {shlex.quote(command.name)})", *_bash_of(command, 2), "        ;;"]
    return "\n".join([*lines, "    esac", "}", "complete -F _rankwatch rankwatch", ""])


def _bash_of(command: Command, level: int) -> Iterator[str]:
    if command.below:
        names = " ".join(below.name for below in command.below)
        yield f'        if [ "$COMP_CWORD" -eq {level} ]; then'
        yield f'            COMPREPLY=($(compgen -W {shlex.quote(f"{names} --help")} -- "$cur"))'
        yield "            return"
        yield "        fi"
        yield f'        case "${{COMP_WORDS[{level}]}}" in'
        for below in command.below:
            yield f"        {shlex.quote(below.name)})"
            yield from _bash_of(below, level + 1)
            yield "            ;;"
        yield "        esac"
        return
    taking = [flag for flag in command.flags if flag.values is not None]
    if taking:
        yield '        case "$prev" in'
        for flag in taking:
            assert flag.values is not None
            yield f"        {'|'.join(flag.names)}) {_bash_values(flag.values)}; return ;;"
        yield "        esac"
    flags = " ".join(name for flag in command.flags for name in flag.names)
    yield '        if [ "${cur#-}" != "$cur" ]; then'
    yield f'            COMPREPLY=($(compgen -W {shlex.quote(flags)} -- "$cur"))'
    yield "            return"
    yield "        fi"
    for values in _of_places(command):
        yield f"        {_bash_values(values, more=True)}"


def _bash_values(values: Values, *, more: bool = False) -> str:
    plus = "+" if more else ""
    if values.words:
        return f'COMPREPLY{plus}=($(compgen -W {shlex.quote(" ".join(values.words))} -- "$cur"))'
    if values.jobs:
        return "_rankwatch_jobs"
    if values.files:
        return f'compopt -o filenames 2>/dev/null; COMPREPLY{plus}=($(compgen -f -- "$cur"))'
    return ":"


def _of_places(command: Command) -> list[Values]:
    """What may stand where no flag does, each kind once. Anything at all completes nothing."""
    return [values for values in dict.fromkeys(command.places) if values != Values()]


def zsh(commands: Sequence[Command]) -> str:
    """The script for zsh: a completion function for compsys."""
    lines = ["#compdef rankwatch", "# made by 'rankwatch completion zsh'", ""]
    lines += ["_rankwatch_jobs() {", f'    local -a jobs=(${{(f)"$({JOBS})"}})']
    lines += ["    compadd -a jobs", "}", ""]
    for command in commands:
        lines += _zsh_function(command, f"_rankwatch_{_name(command.name)}")
    lines += ["_rankwatch() {", "    local -a commands=("]
    lines += [f"        {_zsh_described(command)}" for command in commands]
    lines += ["    )", "    if (( CURRENT == 2 )); then", "        _describe command commands"]
    lines += ["        return", "    fi", "    local command=$words[2]", "    shift words; (( CURRENT-- ))"]
    lines += ['    case "$command" in']
    lines += [f"        {shlex.quote(command.name)}) _rankwatch_{_name(command.name)} ;;" for command in commands]
    lines += ["    esac", "}", "", 'if [ "$funcstack[1]" = "_rankwatch" ]; then _rankwatch "$@"; fi']
    return "\n".join([*lines, ""])


def _zsh_function(command: Command, name: str) -> Iterator[str]:
    for below in command.below:
        yield from _zsh_function(below, f"{name}_{_name(below.name)}")
    yield f"{name}() {{"
    if command.below:
        yield "    local -a commands=(" + " ".join(_zsh_described(below) for below in command.below) + ")"
        yield "    if (( CURRENT == 2 )); then _describe command commands; return; fi"
        yield "    local command=$words[2]; shift words; (( CURRENT-- ))"
        yield '    case "$command" in'
        for below in command.below:
            yield f"        {shlex.quote(below.name)}) {name}_{_name(below.name)} ;;"
        yield "    esac"
    else:
        specs = [_zsh_flag(flag, spelling) for flag in command.flags for spelling in flag.names]
        specs += [shlex.quote(f"{at}::{_zsh_values(values)}") for at, values in enumerate(command.places, 1)]
        if command.places:  # the last one may be there many times
            specs.append(shlex.quote(f"*:{_zsh_values(command.places[-1])}"))
        if specs:
            yield "    _arguments -s \\"
            yield from (f"        {spec} \\" for spec in specs[:-1])
        yield f"        {specs[-1]}" if specs else "    return 1"
    yield "}"
    yield ""


def _zsh_flag(flag: Flag, spelling: str) -> str:
    words = _zsh_words(flag.words)
    if flag.values is None:
        return shlex.quote(f"*{spelling}[{words}]")
    joined = "=" if spelling.startswith("--") else "+"
    return shlex.quote(f"*{spelling}{joined}[{words}]:{_zsh_values(flag.values)}")


def _zsh_values(values: Values) -> str:
    if values.words:
        return f"value:({' '.join(values.words)})"
    return "job:_rankwatch_jobs" if values.jobs else "file:_files" if values.files else "value:()"


def _zsh_words(words: str) -> str:
    return "".join(f"\\{c}" if c in "[]:\\" else c for c in words)


def _zsh_described(command: Command) -> str:
    return shlex.quote(f"{command.name}:{_zsh_words(command.words)}")


def fish(commands: Sequence[Command]) -> str:
    """The script for fish."""
    names = " ".join(command.name for command in commands)
    lines = ["# made by 'rankwatch completion fish'", "complete -c rankwatch -f"]
    none = f"complete -c rankwatch -n 'not __fish_seen_subcommand_from {names}'"
    lines += [f"{none} -a {_fish(command.name)} -d {_fish(command.words)}" for command in commands]
    for command in commands:
        lines += _fish_of(command, f"__fish_seen_subcommand_from {command.name}")
    return "\n".join([*lines, ""])


def _fish_of(command: Command, seen: str) -> Iterator[str]:
    begin = f"complete -c rankwatch -n {_fish(seen)}"
    for below in command.below:
        yield f"{begin} -a {_fish(below.name)} -d {_fish(below.words)}"
        yield from _fish_of(below, f"{seen}; and __fish_seen_subcommand_from {below.name}")
    for flag in command.flags:
        spelled = " ".join(_fish_spelling(name) for name in flag.names)
        takes = "" if flag.values is None else f" {'-r' if flag.values.files else '-x'}{_fish_values(flag.values)}"
        yield f"{begin} {spelled} -d {_fish(flag.words)}{takes}"
    for values in _of_places(command):
        yield f"{begin}{_fish_values(values)}"


def _fish_spelling(name: str) -> str:
    if name.startswith("--"):
        return f"-l {_fish(name[2:])}"
    return f"-s {_fish(name[1:])}" if len(name) == 2 else f"-o {_fish(name[1:])}"


def _fish_values(values: Values) -> str:
    if values.words:
        return f" -a {_fish(' '.join(values.words))}"
    if values.jobs:
        return f" -a {_fish(f'({JOBS})')}"
    return " -F" if values.files else ""


def _fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _name(command: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in command)
