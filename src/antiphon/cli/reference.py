"""The page of the command line, written from the commands themselves. Pure but for reading them.

`python -m antiphon.cli.reference` prints docs/command-line.md; a test holds the two equal.
"""

from typing import Any

import typer.main

from antiphon.cli.app import app

INTRODUCTION = """\
# The command line

<!-- Written by `python -m antiphon.cli.reference > docs/command-line.md`. -->

`antiphon COMMAND --help` says the same. `antiphon --install-completion` teaches your shell to
complete commands and options; `antiphon --version` prints the version.

| exit code | means |
|---|---|
| 0 | done |
| 1 | the tool reported an error, or the call could not be made |
| 2 | usage: wrong words, or a question that nobody here answers |
| 3 | a person said no |
| 4 | the call waits: it was saved, or it is a task that the server keeps |

Results go to standard output, everything said to people to standard error. With `--json` standard
output is one JSON object: `outcome` is `done`, `error`, `refused`, `waiting`, `unanswered` or
`failed`; beside it stand `result`, `asks`, `saved`, `task` or `error`.

```console
$ antiphon tools http://127.0.0.1:8400/mcp
$ antiphon call http://127.0.0.1:8400/mcp provision name=orders
$ antiphon call "python server.py" provision name=orders --answer placement.region=eu-west
$ antiphon call http://127.0.0.1:8400/mcp provision name=orders --save call.json
$ antiphon resume call.json --answer placement.region=eu-west --answer approve.approve=yes
$ antiphon call http://127.0.0.1:8400/mcp rebuild --detach
$ antiphon tasks http://127.0.0.1:8400/mcp 5f0c... --wait
```

Arguments take their types from the tool: `size=3` is a number where the tool wants one, and
`tags:='["a","b"]'` is JSON as it stands. Answers take theirs from the form that asks; `key=decline`
and `key=cancel` refuse, `key=accept` consents to a visit. Old servers give their questions no key:
theirs are `form`, `url`, `sample` and `roots`.

A server may finish a call in the background. `call` waits for such a task and shows what it says;
interrupting cancels it, unless --save names a file: then it is saved and goes on. `--detach` prints
the task's id and leaves it, with exit code 4, for the call has not ended; `antiphon tasks` looks at
it, answers it, waits for it or cancels it. Whoever has the id of a task on a server that knows no
callers has the task: treat it as a password.

A saved call names its server. Where that is a command, `resume` runs it; a file that somebody else
could have written needs `--run`.
"""


def page() -> str:
    """Write the page."""
    group: Any = typer.main.get_command(app)
    sections = [INTRODUCTION]
    for name, command in group.commands.items():
        sections.append(_section(name, command))
        for within, one in getattr(command, "commands", {}).items():
            sections.append(_section(f"{name} {within}", one))
    return "\n".join(sections)


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    words = " ".join(_word(each) for each in arguments)
    usage = f"antiphon {name} {words}".rstrip() + (" [OPTIONS]" if options else "")
    lines = [f"## antiphon {name}", "", (command.help or "").strip(), "", f"    {usage}", ""]
    rows = [(f"`{_word(each)}`", each.help or "") for each in arguments]
    rows += [(_spelling(each), each.help or "") for each in options]
    if rows:
        lines += [
            "| | |",
            "|---|---|",
            *(f"| {left} | {_cell(right)} |" for left, right in rows),
            "",
        ]
    return "\n".join(lines)


def _word(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _spelling(option: Any) -> str:
    names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    return f"{names} `{option.metavar or option.name.upper()}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
