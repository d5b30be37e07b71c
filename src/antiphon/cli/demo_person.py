"""A person at the console's pages, played over HTTP as a browser would: links, forms, cookies."""

from html.parser import HTMLParser
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, ProxyHandler, Request, build_opener

PATIENCE = 10.0
MOST = 1_000_000
"""Bytes of a page."""


class ReadPage(HTMLParser):
    """What matters of a page: its links, the hidden fields, the buttons and what it reports."""

    def __init__(self, url: str, html: str) -> None:
        super().__init__()
        self.url = url
        self.links: list[str] = []
        self.hidden: dict[str, str] = {}
        self.buttons: set[str] = set()
        self.status: str = ""
        self._in_status = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of a link, a field, a button or a status."""
        known = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(urljoin(self.url, known.get("href", "")))
        elif tag == "input" and known.get("type") == "hidden":
            self.hidden.setdefault(known.get("name", ""), known.get("value", ""))
        elif tag == "button" and known.get("name") == "choice":
            self.buttons.add(known.get("value", ""))
        self._in_status = known.get("role") == "status"

    def handle_data(self, data: str) -> None:
        """Take note of the text of a status."""
        if self._in_status:
            self.status += data.strip()

    def handle_endtag(self, tag: str) -> None:
        """A status has ended, if it was one."""
        self._in_status = False


class PlayedPerson:
    """Somebody who signs in with a link, reads and presses buttons."""

    def __init__(self, link: str) -> None:
        """Sign in."""
        parts = urlsplit(link)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        # Pages on this machine are not fetched through a proxy.
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor())
        self.inbox: ReadPage = self._read(link, {})

    def question(self, view: str) -> ReadPage:
        """Open the first question of a list."""
        listed = self._read(urljoin(self.inbox.url, f"inbox?view={view}"))
        return self._read(next(each for each in listed.links if "/ask/" in each))

    def press(self, page: ReadPage, choice: str, note: str) -> ReadPage:
        """Press a button of a question."""
        return self._read(page.url, {**page.hidden, "choice": choice, "note": note})

    def _read(self, url: str, form: dict[str, str] | None = None) -> ReadPage:
        body = None if form is None else urlencode(form).encode()
        request = Request(url, body, {"Origin": self._origin})  # noqa: S310 - our own pages
        with self._opener.open(request, timeout=PATIENCE) as answer:
            return ReadPage(answer.url, answer.read(MOST).decode())
