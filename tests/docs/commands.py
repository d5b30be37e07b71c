"""Writes docs/command-line.md from the commands themselves.

`python -m tests.docs.commands > docs/command-line.md`
"""

import inspect
from typing import Any

import typer.main

from antiphon.cli.app import app

INTRODUCTION = """\
# The command line

<!-- Written by `python -m tests.docs.commands > docs/command-line.md`. -->

`antiphon COMMAND --help` prints the same. `antiphon --install-completion` sets up completion of
commands and options in your shell; `antiphon --version` prints the version. `python -m antiphon`
runs the same commands where the script is not on the path.

| exit code | means |
|---|---|
| 0 | done |
| 1 | the tool reported an error, or the call could not be made |
| 2 | usage: wrong arguments or settings, or a question that nobody answered |
| 3 | a person declined or cancelled |
| 4 | the call has not ended: it was saved, or it is a task on the server |

Results go to standard output, messages for people to standard error. With `--json` standard output
is one JSON object: `outcome` is `done`, `error`, `refused`, `waiting`, `unanswered` or `failed`,
with `result`, `asks`, `saved`, `task` or `error` beside it.

```console
$ antiphon tools http://127.0.0.1:8400/mcp
$ antiphon call http://127.0.0.1:8400/mcp provision name=orders
$ antiphon call "python server.py" provision name=orders --answer placement.region=eu-west
$ antiphon call http://127.0.0.1:8400/mcp provision name=orders --save call.json
$ antiphon resume call.json --answer placement.region=eu-west --answer approve.approve=yes
$ antiphon call http://127.0.0.1:8400/mcp rebuild --detach
$ antiphon tasks http://127.0.0.1:8400/mcp 5f0c... --wait
```

The tool's schema gives arguments their types: `size=3` is a number if the tool takes a number, and
`tags:='["a","b"]'` is read as JSON. Answers get their types from the form. `key=decline` and
`key=cancel` refuse, `key=accept` consents to opening a URL. Where a server wants folders or a
completion, `roots=/srv/data` (once for each folder) and `sample=TEXT` give them; these abilities
are declared to the server when such an answer or `--save` is there. Servers of older revisions give
their questions no key; use `form`, `url`, `sample` and `roots`.

A server may run a call as a task. `call` waits for it and shows its messages; Ctrl-C cancels it,
unless `--save` names a file: then it is saved and continues. `--detach` prints the id of the task
and exits with 4. `antiphon tasks` shows the task, answers it, waits for it or cancels it. On a
server without authentication whoever has the id of a task has the task: keep it like a password.
The protocol has no list of tasks, so the ids of tasks that `call` began are kept in files that only
you can read, until the tasks have ended; `antiphon tasks URL` lists them. `--save` files and these
are all that the command line writes.

A server of yours is named by its file, wherever the command runs: `antiphon serve path/to/shop.py`,
or `path/to/shop.py:NAME` if it has several. As a target of `call`, `tools` and `tasks` the file is
served on stdio for this one command. Hosts that start servers by a command, such as desktop
applications, are given the same: `antiphon serve /path/to/shop.py --stdio`.

A server that is started as a command inherits PATH, HOME, USER, LOGNAME, SHELL and TERM (on Windows
their like), and the variables of `--env`: `--env REGION` passes yours on, `--env REGION=eu` sets
one.

A saved call that you saved on this computer continues as it was. In any other file somebody else
chose the server, the tool and the arguments. `resume` shows them; your login, headers and proxies
are used only after you agree at the terminal, or with `--run`. A file never names a program: a call
to a command is continued with `--target COMMAND`. A file without a token or a task was never begun,
and needs `--restart`. If another server answers than the one that the call was begun with, a
message says so.

Files are written so that a folder prepared by somebody else can do no harm: links are not followed,
a file that Antiphon has not written is never replaced, and what is written can be read by you only.

Texts of a server are shown so that they cannot mislead: control characters, marks that turn the
reading direction, invisible characters and unusual blanks appear as escapes such as `\\u202e`. A
page is opened only if its URL can be read in one way: without backslashes, blanks, `user@` and
other disguises of the host. A host in other letters than a to z is shown as Punycode and left to
you to open.
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
    lines = [f"## antiphon {name}", "", _help(command.help or ""), "", f"    {usage}", ""]
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


def _help(text: str) -> str:
    """Return the help of a command as Markdown: its examples are blocks of code."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(_example(each) if each.startswith("\b") else each for each in paragraphs)


def _example(paragraph: str) -> str:
    lines = [line.strip() for line in paragraph.removeprefix("\b").strip().splitlines()]
    return "\n".join(["```console", *(f"$ {line}" for line in lines), "```"])


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
