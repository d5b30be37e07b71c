"""A person at a terminal: forms, visits to pages, review before anything is sent.

It shows who asks, always offers to decline and to cancel, and escapes every text of the server. No
page is opened without an explicit yes, and none is fetched.
"""

import os
import sys
import threading
import webbrowser
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from antiphon.client.answers import Combining
from antiphon.client.asks import Accept, Cancel, Decline, FormAsk, UrlAsk
from antiphon.client.fields import FieldPrompt, prompts
from antiphon.errors import AnswerInvalid
from antiphon.protocol.text import safe, safe_line
from antiphon.protocol.web_url import MAX_URL, imitates, web_host

MESSAGE = 9_000
"""Characters of a message that are shown."""

TRIES = 20
"""Wrong lines for one field, after which the question counts as dismissed."""

_DECLINE = frozenset({":decline", ":d"})
_CANCEL = frozenset({":cancel", ":c"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


class _Left(Exception):
    """The person chose not to answer."""

    def __init__(self, answer: Decline | Cancel) -> None:
        super().__init__()
        self.answer = answer


class Terminal(Combining):
    """Answers forms and URL asks by asking a person; one question at a time."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        read: Callable[[], str] | None = None,
        open_url: Callable[[str], object] | None = None,
    ) -> None:
        """Use the given console, reader of lines and opener of pages, or the usual ones.

        Args:
            console: Where questions are shown; standard error by default.
            read: Returns the next line, or raises `EOFError`.
            open_url: Opens a page after consent; by default a graphical browser, if there is one.
        """
        self._console = console or Console(stderr=True, highlight=False)
        self._read = read or input
        self._open = open_url or find_browser()
        self._turn = threading.Lock()

    def elicit(self, ask: FormAsk) -> Accept | Decline | Cancel:
        """Ask for each field of a form, show all for review, and return them."""
        with self._turn:
            return self._answered(ask, lambda: self._form(prompts(ask.schema)))

    def elicit_url(self, ask: UrlAsk) -> Accept | Decline | Cancel:
        """Show where a page is and ask for consent to open it."""
        with self._turn:
            return self._answered(ask, lambda: self._visit(ask))

    def _answered(
        self, ask: FormAsk | UrlAsk, lead: Callable[[], Accept]
    ) -> Accept | Decline | Cancel:
        try:
            self._head(ask, ask.message)
            return lead()
        except _Left as left:
            return left.answer
        except (EOFError, KeyboardInterrupt):
            # An interrupt while a question is open dismisses the question.
            self._console.print()
            return Cancel()

    # --- forms ---------------------------------------------------------------------------------

    def _form(self, fields: list[FieldPrompt]) -> Accept:
        values: dict[str, Any] = {}
        for field in fields:
            values[field.name] = self._field(field, None)
        if len(fields) == 1 and fields[0].must_be_typed:
            return Accept(values)  # a yes or a no needs no second one
        for _ in range(TRIES):
            self._review(fields, values)
            word = self._ask("Send this? yes, edit, decline or cancel", "yes").strip() or "yes"
            match word.lower():
                case "yes" | "y" | "send":
                    return Accept({k: v for k, v in values.items() if v is not None})
                case "edit" | "e":
                    for field in fields:
                        values[field.name] = self._field(field, values[field.name])
                case "decline" | "d" | "no" | "n":
                    raise _Left(Decline())
                case "cancel" | "c":
                    raise _Left(Cancel())
                case _:
                    self._say("Type yes, edit, decline or cancel.", "yellow")
        raise _Left(Cancel())

    def _field(self, field: FieldPrompt, now: Any) -> Any:
        """Ask for one field until the line fits; when editing, an empty line keeps the value."""
        self._console.print(Text(field.label, style="bold"))
        if field.description:
            self._console.print(Text(f"  {field.description}", style="dim"))
        for number, choice in enumerate(field.choices, 1):
            self._console.print(Text(f"  {number}. {choice.title}"))
        hint = ", ".join(field.hints())
        shown = now if now is not None else field.default
        for _ in range(TRIES):
            line = self._ask(
                f"  {hint}" if hint else " ", None if shown is None else field.show(shown)
            )
            if now is not None and not line.strip():
                return now
            try:
                return field.read(line)
            except AnswerInvalid as invalid:
                for reason in invalid.reasons:
                    self._say(f"  {reason}", "red")
        raise _Left(Cancel())

    def _review(self, fields: list[FieldPrompt], values: dict[str, Any]) -> None:
        self._say("What will be sent:", "bold")
        table = Table(show_header=False)
        table.add_column(style="bold")
        table.add_column()
        for field in fields:
            table.add_row(Text(field.label), Text(field.show(values[field.name])))
        self._console.print(table)

    # --- pages ---------------------------------------------------------------------------------

    def _visit(self, ask: UrlAsk) -> Accept:
        self._show_url(ask)
        choices = _choices(ask)
        *others, last = choices.values()
        offered = f"{', '.join(others)} or {last}"
        for _ in range(TRIES):
            word = self._ask(f"This page: {offered}", None).strip().lower()
            match word:
                case "open" | "o" if "open" in choices:
                    if self._open is None:
                        self._say("There is no browser here: open the page yourself.", "yellow")
                    else:
                        self._open(ask.url)
                    return Accept()
                case "accept" | "a" if "accept" in choices:
                    return Accept()
                case "decline" | "d":
                    raise _Left(Decline())
                case "cancel" | "c":
                    raise _Left(Cancel())
                case _:
                    self._say(f"Type {offered}.", "yellow")
        raise _Left(Cancel())

    def _show_url(self, ask: UrlAsk) -> None:
        """Show the whole URL, the host that a browser would open, and what is suspicious."""
        shown = Text(safe_line(ask.url, MAX_URL))
        if ask.host:
            shown.highlight_words([ask.host], style="bold reverse", case_sensitive=False)
        self._console.print(Text("  "), shown, soft_wrap=True, sep="")
        host = ask.host or "(unreadable)"
        self._console.print(Text("  host: "), Text(host, style="bold"), soft_wrap=True, sep="")
        for warning in url_warnings(ask.url):
            self._say(f"  Warning: {warning}", "bold red")

    # --- words ---------------------------------------------------------------------------------

    def _head(self, ask: FormAsk | UrlAsk, message: str) -> None:
        server = safe_line(ask.server, 120) or "an unnamed server"
        origin = f" at {safe_line(ask.origin, 200)}" if ask.origin else ""
        title = Text(f"{server}{origin} asks")
        self._console.print(
            Panel(
                Text(safe(message, MESSAGE)), title=title, title_align="left", border_style="cyan"
            )
        )
        self._console.print(Text("(:decline says no, :cancel dismisses)", style="dim"))

    def _ask(self, words: str, default: str | None) -> str:
        prompt = Text(words)
        if default is not None:
            prompt.append(f" [{default}]", style="cyan")
        self._console.print(prompt, end=": ", soft_wrap=True)
        line = self._read()
        word = line.strip().lower()
        if word in _DECLINE:
            raise _Left(Decline())
        if word in _CANCEL:
            raise _Left(Cancel())
        return line

    def _say(self, words: str, style: str) -> None:
        self._console.print(Text(words, style=style))


def url_warnings(url: str) -> list[str]:
    """Return what is suspicious about a URL (ELICIT-35)."""
    try:
        host = web_host(url)
    except ValueError as error:
        return [safe_line(f"this page is not opened: {error}", 200)]
    warnings: list[str] = []
    if not url.lower().startswith("https:") and host not in _LOOPBACK:
        warnings.append("the connection is not encrypted")
    if imitates(host):
        warnings.append("the host uses letters that can imitate others (Punycode)")
    return warnings


def _choices(ask: UrlAsk) -> dict[str, str]:
    """Return what a person may choose for a page, and how each choice is shown."""
    refuse = {"decline": "decline", "cancel": "cancel"}
    if not ask.host:
        return refuse
    by_hand = {"accept": "accept (I open it myself)", **refuse}
    # A host that can be mistaken for another is opened by hand only, after it was read.
    return by_hand if imitates(ask.host) else {"open": "open", **by_hand}


def find_browser() -> Callable[[str], object] | None:
    """Return what opens a page in a graphical browser; None where there is none."""
    # A text browser would take over the terminal, and this program could see the page.
    graphical = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return webbrowser.open if graphical else None
