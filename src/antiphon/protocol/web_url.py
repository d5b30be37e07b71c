"""Web addresses whose host cannot be misread: which host a browser opens for a URL.

Browsers and Python's parser read some texts differently: a backslash ends the host for a browser,
blanks and controls are dropped, `0x7f.1` is an address, letters of other scripts imitate each
other. What could be read in two ways is refused here, so the host that a person is shown is the one
that opens.
"""

import ipaddress
import re
import unicodedata
from urllib.parse import urlsplit

MAX_URL = 8_192
"""Characters of a URL that a person may be sent to."""

_PLAIN_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
_BRACKETED = re.compile(r"\[[0-9A-Fa-f:.]+\](?::[0-9]*)?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def web_host(url: str) -> str:
    """Return the host that a browser opens for a URL, in ASCII and lower case.

    Names in other scripts are returned as Punycode; `imitates` finds them.

    Raises:
        ValueError: The URL is not an absolute http(s) URL, or could be read in two ways.
    """
    if len(url) > MAX_URL:
        raise ValueError(f"it is longer than {MAX_URL} characters")
    if "\\" in url:
        raise ValueError("it holds a backslash, which browsers read as a slash")
    if any(char.isspace() or not char.isprintable() for char in url):
        raise ValueError("it holds blanks or invisible characters, which browsers drop")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("it is not a web page")
    if "@" in parts.netloc:
        raise ValueError("what stands before @ is not the host")
    _ = parts.port  # raises if it is not a number
    host = parts.hostname or ""
    if "[" in parts.netloc:
        if not _BRACKETED.fullmatch(parts.netloc):
            raise ValueError("its host cannot be read")
        return f"[{ipaddress.IPv6Address(host)}]"
    return _named(host)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """Return whether nobody on the way can read what is sent to a URL: https, or this machine."""
    try:
        host = web_host(url)
    except ValueError:
        return False
    return urlsplit(url).scheme == "https" or is_loopback(host.strip("[]"))


def imitates(host: str) -> bool:
    """Return whether a host of `web_host` has letters that can imitate others."""
    return any(label.startswith("xn--") for label in host.split("."))


def _named(host: str) -> str:
    if unicodedata.normalize("NFKC", host) != host:
        raise ValueError("its host is written with letters that browsers replace")
    labels = [_label(label) for label in host.removesuffix(".").split(".")]
    if _NUMBER.fullmatch(labels[-1]):
        # Browsers read any host that ends in a number as an address, also 2130706433 and 0177.1.
        return str(ipaddress.IPv4Address(host))
    return ".".join(labels)


def _label(label: str) -> str:
    if label.isascii():
        if not _PLAIN_LABEL.fullmatch(label):
            raise ValueError("its host cannot be read")
        return label
    if any(unicodedata.category(char)[0] not in "LMN" and char != "-" for char in label):
        raise ValueError("its host cannot be read")
    return "xn--" + label.encode("punycode").decode()
