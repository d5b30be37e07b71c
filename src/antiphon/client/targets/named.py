"""What a text names as a server: a URL, a command, or the file or module of a server.

A text is read here, once, where it comes from: `parse_target` decides by the text alone, never by
what lies in the working directory. Everything behind takes the value and does not look at the text
again. A `Url` checks itself, so that none can be made of a text that is something else.
"""

import re
import shlex
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from antiphon.client.errors import CannotConnect

_WITH_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HALF_URL = re.compile(r"https?:", re.IGNORECASE)
_URL = re.compile(r"https?://", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[\s\\\x00-\x1f\x7f]")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}(/\S*)?")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_SOURCE = ".py"


class NamedTarget:
    """A server that a text can name: a `Url`, a `Command`, a `File` or a `Module`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Url(NamedTarget):
    """The address of a server over HTTP.

    Raises:
        CannotConnect: The text is no URL of an HTTP server.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse every text that is no URL with a host."""
        if not _URL.match(self.text) or _NOT_IN_URL.search(self.text):
            raise CannotConnect("a URL begins with http:// or https:// and has no spaces")
        try:
            parts = urlsplit(self.text)
            _ = parts.port
        except ValueError as error:
            raise CannotConnect(f"the URL cannot be read: {error}") from error
        if not parts.hostname:
            raise CannotConnect("the URL names no host: write http://HOST:PORT/PATH")

    def __str__(self) -> str:
        return self.text

    @property
    def shown(self) -> str:
        """The URL as logs and messages show it: no credentials, no query."""
        parts = urlsplit(self.text)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    @property
    def without_credentials(self) -> "Url":
        """The same URL without user name and password."""
        parts = urlsplit(self.text)
        return Url(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))


@dataclass(frozen=True, slots=True)
class Command(NamedTarget):
    """A program that serves on its standard streams.

    Raises:
        CannotConnect: There is no program.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse an empty command."""
        if not self.words or not self.words[0]:
            raise CannotConnect("the target is empty: pass a URL, a file or a command")

    def __str__(self) -> str:
        return shlex.join(self.words)


@dataclass(frozen=True, slots=True)
class File(NamedTarget):
    """A Python file that holds a server, and the name of the server in it; empty for the only one.

    It is served on standard streams by this very Python.
    """

    path: str
    variable: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.variable}" if self.variable else self.path

    @property
    def command(self) -> Command:
        """What serves it."""
        return _serving(str(self))


@dataclass(frozen=True, slots=True)
class Module(NamedTarget):
    """A module that holds a server, and the name of the server in it: `shop:server`.

    It is served on standard streams by this very Python, from the working directory.
    """

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def command(self) -> Command:
        """What serves it."""
        return _serving(self.name)


def _serving(name: str) -> Command:
    return Command((sys.executable, "-m", "antiphon", "serve", "--stdio", "--", name))


def parse_target(text: str) -> Url | Command | File | Module:
    """Read where a server is.

    `scheme://` makes it a URL, one word that ends in `.py` (or `.py:name`) a file, one word like
    `shop:server` a module, and everything else is a command as a shell would read it.

    Raises:
        CannotConnect: It is none of them.
    """
    text = text.strip()
    found = _WITH_SCHEME.match(text)
    if found is not None and found[1].lower() not in ("http", "https"):
        raise CannotConnect(f"unknown scheme {found[1]!r}: a URL begins with http:// or https://")
    if found is not None or _HALF_URL.match(text):
        return Url(text)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CannotConnect(f"the command cannot be read: {error}") from error
    if len(words) == 1:
        # A shell takes backslashes away, which are part of paths on Windows.
        path, variable = split_name(words[0] if text[0] in "'\"" else text)
        if path.endswith(_SOURCE):
            return File(path, variable)
        return _one_word(words[0])
    return Command(tuple(words))


def _one_word(word: str) -> Command | Module:
    """Read a word that is no file.

    Raises:
        CannotConnect: It is an address without its scheme.
    """
    address = _ADDRESS.fullmatch(word)
    if address is not None:
        url = f"http://{word}" if address[2] else f"http://{word}/mcp"
        raise CannotConnect(f"{word!r} is no URL: write {url}")
    return Module(word) if _MODULE.fullmatch(word) else Command((word,))


def split_name(name: str) -> tuple[str, str]:
    """Split the name of a server into module or file, and variable; the latter may be empty."""
    place, colon, variable = name.rpartition(":")
    # `C:\shop.py` has a colon, and no variable behind it.
    if not colon or "/" in variable or "\\" in variable:
        return name, ""
    return place, variable
