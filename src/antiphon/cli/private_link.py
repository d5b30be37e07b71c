"""Open a link that signs somebody in, without its secret in the process list.

A browser is started with the address as an argument, which every user of the machine can read. So
it is given a file that only its owner can read, and the file leads on to the link.
"""

from collections.abc import Callable
from html import escape

from antiphon.cli.written_files import write_private

_PAGE = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={link}">
<title>Antiphon</title>
<p><a href="{link}">Continue to the console</a></p>
"""


def open_privately(browser: Callable[[str], object], link: str) -> None:
    """Let a browser open a link that nobody else may see."""
    file = write_private("open.html", _PAGE.format(link=escape(link, quote=True)))
    browser(file.as_uri())
