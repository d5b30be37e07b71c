"""`antiphon call` and `antiphon resume`: a call to its end, or saved where nobody answers.

One round at a time in the main thread, so that a person at the terminal can interrupt a question.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli import files, show
from antiphon.cli.arguments import headers, tool_arguments
from antiphon.cli.connect import Settings, connected, interactive
from antiphon.cli.exits import DONE, FAILED, REFUSED, USAGE, WAITING, errors, fail
from antiphon.cli.options import ANSWER, ERA, HEADER, JSON, NO_INPUT, SAVE, TARGET, TIMEOUT, VERBOSE
from antiphon.client.answers import Answers, Scripted, method_for
from antiphon.client.errors import (
    AnswerUnfit,
    ClientError,
    ConnectionLost,
    Pass,
    PatienceLost,
    SavedCallInvalid,
    Unanswered,
)
from antiphon.client.saved import load
from antiphon.client.terminal import Terminal
from antiphon.client.values import AnyAsk, Cancel, Decline, Step, view
from antiphon.core.gate import Need
from antiphon.errors import AnswerInvalid

if TYPE_CHECKING:
    from antiphon.client.blocking import BlockingClient


def call(
    target: TARGET,
    tool: Annotated[str, typer.Argument(help="Name of the tool.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Arguments; NAME:=JSON for any JSON value."),
    ] = None,
    answer: ANSWER = None,
    save: SAVE = None,
    json: JSON = False,
    header: HEADER = None,
    era: ERA = "auto",
    timeout: TIMEOUT = 300.0,
    no_input: NO_INPUT = False,
    verbose: VERBOSE = False,
) -> None:
    """Call a tool and answer what it asks.

    Questions are answered from --answer, then at the terminal. Where neither can, the call is saved
    with --save, to go on with `antiphon resume`, or it fails.

    Exit codes: 0 done, 1 error, 2 usage, 3 a person said no, 4 waiting (saved).
    """
    session = Session.start(answer, save=save, json=json, ask=not no_input)
    settings = _settings(header, era, timeout, verbose)
    with connected(target, settings, session.answers) as client:
        try:
            given = tool_arguments(arguments or (), _schema(client, tool, arguments))
        except ValueError as error:
            fail(str(error), USAGE)
        code = session.run(client, partial(client.begin, tool, given))
    raise typer.Exit(code)


def resume(
    file: Annotated[
        Path, typer.Argument(help="A call saved with --save.", exists=True, dir_okay=False)
    ],
    answer: ANSWER = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="TARGET", help="Another URL or command than the saved one."
        ),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run the command named in a file from somebody else.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin the call anew.")] = False,
    save: SAVE = None,
    json: JSON = False,
    header: HEADER = None,
    era: ERA = "auto",
    timeout: TIMEOUT = 300.0,
    no_input: NO_INPUT = False,
    verbose: VERBOSE = False,
) -> None:
    """Go on with a saved call.

    When it waits again it is saved again, into the same file unless --save names another.
    """

    try:
        text = file.read_text(encoding="utf-8")
        saved = load(text)
    except (OSError, UnicodeDecodeError, SavedCallInvalid) as error:
        fail(f"{file}: {error}", USAGE)
    where = target or _trusted(file, saved.target, run=run)
    session = Session.start(answer, save=save or file, json=json, ask=not no_input)
    with connected(where, _settings(header, era, timeout, verbose), session.answers) as client:
        if restart:
            code = session.run(client, partial(_restarted, client, text))
        else:
            code = session.go_on(client, text)
    raise typer.Exit(code)


def _restarted(client: "BlockingClient", text: str, **options: Any) -> Step:
    return client.restart(text)


def _settings(header: list[str] | None, era: str, timeout: float, verbose: bool) -> Settings:
    try:
        given = headers(header or ())
    except ValueError as error:
        fail(str(error), USAGE)
    return Settings(headers=given, era=era, timeout=timeout, verbose=verbose)


def _trusted(file: Path, target: str | list[str] | None, *, run: bool) -> str | list[str]:
    if target is None:
        fail(
            f"{file}: the call was made in a process of its own; name its server with --target",
            USAGE,
        )
    if isinstance(target, list) and not run and not files.written_by_us(file):
        command = shlex.join(target)
        fail(
            f"{file} could have been written by somebody else, and going on would run its command: "
            f"{command}. Pass --run if you trust it, or --target.",
            USAGE,
        )
    return target


def _schema(
    client: "BlockingClient", tool: str, arguments: list[str] | None
) -> Mapping[str, Any] | None:
    """Look the tool up, so that its arguments get their types; without arguments it need not be."""

    if not arguments:
        return None
    try:
        found = {each.name: each for each in client.list_tools()}
    except ClientError as error:
        fail(str(error))
    if tool not in found:
        names = ", ".join(found) or "none"
        fail(f"the server has no tool {tool!r}; it has: {names}", USAGE)
    return found[tool].input_schema


@dataclass(slots=True)
class Session:
    """One call on the command line: who answers, where it is saved, how it is told."""

    script: Scripted
    terminal: Terminal | None
    save: Path | None
    json: bool
    refused: bool = field(default=False)
    bar: "show.Bar | None" = None

    @classmethod
    def start(
        cls, answer: list[str] | None, *, save: Path | None, json: bool, ask: bool
    ) -> "Session":
        """Read the answers of the command line and see whether a person is here."""

        try:
            script = Scripted.parse(answer or ())
        except ValueError as error:
            fail(str(error), USAGE)
        terminal = Terminal(errors()) if ask and interactive() else None
        return cls(script, terminal, save, json)

    @property
    def answers(self) -> Any:
        """Who answers in a legacy session, where the server asks in mid-call."""

        def noted(ask: AnyAsk) -> Any:
            answer = self._one(ask)
            if answer is None:
                raise Pass
            self._note(answer)
            return answer

        able = self.can if self.terminal else self.script.abilities
        return Answers(
            elicit=noted if "form" in able else None,
            elicit_url=noted if "url" in able else None,
            sample=noted if "sampling" in able else None,
            roots=noted if "roots" in able else None,
        )

    @property
    def can(self) -> frozenset[Need]:
        """What is declared: forms and visits always, for a saved call can be answered later."""
        always: frozenset[Need] = frozenset({"form", "url"})
        return always | self.script.abilities

    def run(self, client: "BlockingClient", begin: Callable[..., Step]) -> int:
        """Begin, then answer round by round."""
        with show.bar() as self.bar:
            return self._guarded(client, lambda: begin(**self._options()))

    def go_on(self, client: "BlockingClient", text: str) -> int:
        """Answer a saved call, then round by round."""

        saved = load(text)
        name = (saved.server or {}).get("name", "")
        asks = {ask.key: view(ask, server=name) for ask in saved.call.asks}
        with show.bar() as self.bar:
            return self._guarded(client, lambda: Step(saved=saved, asks=asks))

    def _options(self) -> dict[str, Any]:
        return {"can": self.can, "on_progress": self.bar}

    def _guarded(self, client: "BlockingClient", first: Callable[[], Step]) -> int:

        try:
            return self._rounds(client, first())
        except ClientError as error:
            return self._failed(error)

    def _rounds(self, client: "BlockingClient", step: Step) -> int:
        while step.waiting:
            answers, missing = self._answer(step)
            if missing:
                return self._unanswered(step, missing)
            # Answers whose arrival is unknown are sent again as they were.
            given = None if step.call.answers is not None and not answers else answers
            step = client.resume(step, given, **self._options())
        return self._done(step)

    def _answer(self, step: Step) -> tuple[dict[str, Any], list[str]]:

        answers: dict[str, Any] = {}
        missing: list[str] = []
        if step.call.answers is not None and not any(self.script.has(key) for key in step.asks):
            return answers, missing
        for key, ask in step.asks.items():
            answer = self._one(ask)
            if answer is None:
                missing.append(key)
                continue
            answers[key] = answer
            self._note(answer)
        return answers, missing

    def _note(self, answer: Any) -> None:
        self.refused = self.refused or isinstance(answer, Decline | Cancel)

    def _one(self, ask: AnyAsk) -> Any:

        try:
            return method_for(self.script, ask)(ask)
        except Pass:
            pass
        except AnswerInvalid as error:
            raise AnswerUnfit(error.reasons) from None
        if self.terminal is None or ask.kind not in ("form", "url"):
            return None
        if self.bar:
            self.bar.pause()
        return method_for(self.terminal, ask)(ask)

    # --- how it ends ---------------------------------------------------------------------------

    def _done(self, step: Step) -> int:
        dumped = step.result.model_dump(by_alias=True, mode="json", exclude_none=True)
        failed = bool(dumped.get("isError"))
        code = REFUSED if self.refused else FAILED if failed else DONE
        if self.json:
            word = {REFUSED: "refused", FAILED: "error", DONE: "done"}[code]
            show.as_json(word, result=dumped)
        else:
            show.result(dumped)
        return code

    def _unanswered(self, step: Step, missing: list[str]) -> int:
        asks = {key: step.asks[key] for key in missing}
        if self.save is None:
            if self.json:
                show.as_json("unanswered", asks=show.asks_json(asks))
            errors().print("The server asks, and nobody answers here:")
            show.open_asks(asks)
            fail("answer with --answer, or save the call with --save FILE", USAGE)
        files.write(self.save, step.dump())
        if self.json:
            show.as_json("waiting", saved=str(self.save), asks=show.asks_json(step.asks))
        else:
            errors().print(f"Waiting for answers; saved in {self.save}:", markup=False)
            show.open_asks(asks)
            errors().print(
                f"Go on with: antiphon resume {shlex.quote(str(self.save))}", markup=False
            )
        return WAITING

    def _failed(self, error: ClientError) -> int:

        code = USAGE if isinstance(error, AnswerInvalid) else FAILED
        if self.save is not None and error.step is not None and _worth_saving(error):
            files.write(self.save, error.step.dump())
            errors().print(f"The call is saved in {self.save}.", markup=False)
            code = code if code == USAGE else WAITING
        if self.json:
            show.as_json("failed", error={"type": type(error).__name__, "message": str(error)})
        fail(str(error), code)


def _worth_saving(error: ClientError) -> bool:

    return isinstance(error, ConnectionLost | PatienceLost | Unanswered | AnswerInvalid)
