"""Writes the completion scripts of bash, zsh and fish from the words that each command takes.

Always true: a script finds the command by the words before the cursor, wherever options stand between them, and offers
only what that command takes: an option that has choices offers these and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

_TITLE = "# Completion of rewardflow; made by `rewardflow completion`."


@dataclass(frozen=True, slots=True)
class Option:
    """An option with its help. Choices are all the values that it takes; without choices a value may be a file."""

    name: str
    help: str
    takes_value: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWords:
    """What may follow a command; its path is "" for `rewardflow` itself, and such as "/journal/show"."""

    path: str
    options: tuple[Option, ...]
    subcommands: Mapping[str, str] = field(default_factory=dict)  # with their help
    choices: tuple[str, ...] = ()  # of its arguments
    keys: tuple[str, ...] = ()  # of a run file, each with its equals sign
    takes_files: bool = False

    @property
    def described(self) -> dict[str, str]:
        return {
            **self.subcommands,
            **dict.fromkeys(self.choices, ""),
            **{option.name: option.help for option in self.options},
        }

    @property
    def takes_value(self) -> str:
        return " ".join(option.name for option in self.options if option.takes_value)


def bash_script(commands: Sequence[CommandWords]) -> str:
    def case(one: CommandWords) -> str:
        words = " ".join([*one.described, *one.keys])
        return f"words={_quoted(words)} takes='{one.takes_value}' files={int(one.takes_files)}"

    return f"""\
{_TITLE}
_rewardflow() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local node='' word words='' takes='' files=0
  # a word may hold '=', at which bash breaks: take it from the line
  local line=${{COMP_LINE:0:COMP_POINT}}
  local whole=${{line##*[[:space:]]}}
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
{_finding_the_command(commands)}
  done
{_cases(commands, case)}
  case $whole in
    --*=*) previous=${{whole%%=*}} current=${{whole#*=}} ;;
    -*) ;;
    *=*) words='' files=1 current=${{whole#*=}} previous='' ;;
  esac
  case " $takes " in *" $previous "*) words='' files=1 ;; esac
{_choices(commands, lambda choices: f"words={_quoted(' '.join(choices))} files=0")}
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  case ${{COMPREPLY[0]:-}} in *=) compopt -o nospace 2>/dev/null ;; esac
  case $files$current in
    1-*) ;;
    1*)
      [ ${{#COMPREPLY[@]}} -eq 0 ] && compopt -o filenames 2>/dev/null
      local IFS=$'\\n'
      COMPREPLY+=($(compgen -f -- "$current"))
      ;;
  esac
}}
complete -F _rewardflow rewardflow
"""


def zsh_script(commands: Sequence[CommandWords]) -> str:
    def case(one: CommandWords) -> str:
        offered = " ".join(_quoted(f"{name}:{text}" if text else name) for name, text in one.described.items())
        takes = f"keys=({' '.join(one.keys)}) takes='{one.takes_value}' files={int(one.takes_files)}"
        return f"offered=({offered}) {takes}"

    return f"""\
#compdef rewardflow
{_TITLE}
_rewardflow() {{
  local node='' word previous=${{words[CURRENT-1]}} takes='' files=0
  local -a offered keys
  for word in "${{(@)words[2,CURRENT-1]}}"; do
{_finding_the_command(commands)}
  done
{_cases(commands, case)}
  case $PREFIX in
    --*=*) previous=${{PREFIX%%=*}}; compset -P '*=' ;;
    -*) ;;
    *=*) compset -P '*='; _files; return ;;
  esac
  case " $takes " in *" $previous "*) _rewardflow_value; return ;; esac
  [[ ${{#offered}} -gt 0 ]] && _describe 'word' offered
  [[ ${{#keys}} -gt 0 ]] && compadd -S '' -a keys
  [[ $files -eq 1 ]] && _files
}}
_rewardflow_value() {{
{_choices(commands, lambda choices: f"compadd {' '.join(choices)}; return")}
  _files
}}
# zsh runs the file for the first completion, and `source` runs it for none
if [[ $funcstack[1] == _rewardflow ]]; then _rewardflow "$@"; else compdef _rewardflow rewardflow; fi
"""


def fish_script(commands: Sequence[CommandWords]) -> str:
    lines = [
        _TITLE,
        "function __rewardflow_at",
        "    set -l node ''",
        "    for word in (commandline -opc)[2..-1]",
        '        switch "$node/$word"',
        f"            case {' '.join(_paths(commands))}",
        '                set node "$node/$word"',
        "        end",
        "    end",
        '    test "$node" = "$argv[1]"',
        "end",
    ]
    for one in commands:
        here = f"complete -c rewardflow -n {_fish_quoted(f'__rewardflow_at {one.path}' if one.path else _FISH_TOP)}"
        if not one.takes_files:
            lines.append(f"{here} -f")
        lines += [f"{here} -a {name} -d {_fish_quoted(text)}" for name, text in one.subcommands.items()]
        if one.choices or one.keys:
            lines.append(f"{here} -a {_fish_quoted(' '.join([*one.choices, *one.keys]))}")
        for option in one.options:
            value = f" -x -a {_fish_quoted(' '.join(option.choices))}" if option.choices else " -r -F"
            lines.append(
                f"{here} -l {option.name[2:]}{value if option.takes_value else ''} -d {_fish_quoted(option.help)}"
            )
    return "\n".join(lines) + "\n"


SCRIPTS: Mapping[str, Callable[[Sequence[CommandWords]], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}

_FISH_TOP = '__rewardflow_at ""'


# ---- what bash and zsh write alike --------------------------------------------------------------------------------


def _paths(commands: Sequence[CommandWords]) -> list[str]:
    return [one.path for one in commands if one.path]


def _finding_the_command(commands: Sequence[CommandWords]) -> str:
    return f"""\
    case $node/$word in
      {"|".join(_paths(commands))}) node=$node/$word ;;
    esac"""


def _cases(commands: Sequence[CommandWords], assignments: Callable[[CommandWords], str]) -> str:
    lines = [f"    {one.path or _quoted('')}) {assignments(one)} ;;" for one in commands]
    return "\n".join(["  case $node in", *lines, "  esac"])


def _choices(commands: Sequence[CommandWords], then: Callable[[tuple[str, ...]], str]) -> str:
    """Writes what follows an option that has choices."""
    lines = [
        f"    {one.path}{option.name}) {then(option.choices)} ;;"
        for one in commands
        for option in one.options
        if option.choices
    ]
    return "\n".join(["  case $node$previous in", *lines, "  esac"])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
