"""A link that signs somebody in reaches the browser, and no list of processes."""

import stat
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from antiphon.cli.private_link import open_privately

LINK = "http://127.0.0.1:8400/console/link/secret-of-the-link?a=1&b=2"


def test_the_browser_is_given_a_private_file_and_not_the_secret() -> None:
    given: list[str] = []
    open_privately(given.append, LINK)
    (address,) = given
    assert urlsplit(address).scheme == "file"
    assert "secret-of-the-link" not in address
    file = Path(url2pathname(urlsplit(address).path))
    try:
        assert LINK.replace("&", "&amp;") in file.read_text()
        if sys.platform != "win32":
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    finally:
        file.unlink()
        file.parent.rmdir()


@pytest.mark.parametrize("link", ['http://x/"><script>alert(1)</script>'])
def test_a_link_cannot_end_its_place_in_the_page(link: str) -> None:
    given: list[str] = []
    open_privately(given.append, link)
    file = Path(url2pathname(urlsplit(given[0]).path))
    try:
        assert "<script>" not in file.read_text()
    finally:
        file.unlink()
        file.parent.rmdir()
