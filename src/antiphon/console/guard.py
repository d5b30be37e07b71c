"""What every request to the console must pass, and what every response carries.

A page on another site can make a browser send requests here, but cannot read the answers and cannot
send our cookie with a form. A POST must come from our own pages (`Sec-Fetch-Site` or `Origin`) and
bring a token that only the session knows. The content security policy lets no script run but ours.
"""

from collections.abc import Mapping

from antiphon.console.sessions import Session, same
from antiphon.console.settings import Console

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
CSRF = "form"
"""The purpose for which a session proves that a form is its own."""


def is_our_host(headers: Mapping[str, str], console: Console) -> bool:
    """Tell whether the request names the host of the console: no other name reaches it."""
    return headers.get("host", "").lower() == console.host


def is_from_our_pages(headers: Mapping[str, str], console: Console) -> bool:
    """Tell whether a POST comes from a page of the console.

    Browsers send `Sec-Fetch-Site` or at least `Origin` with every POST; a request that has neither
    does not come from one that is safe to answer.
    """
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is not None and origin.lower() not in (console.origin, "null"):
        return False
    return site is not None or (origin or "").lower() == console.origin


def is_own_form(token: str, session: Session) -> bool:
    """Tell whether a form was rendered for this session."""
    return same(token, session.proof(CSRF))


def safe_return(path: str, console: Console) -> str:
    """Return a path inside the console to go to after signing in."""
    inside = path.startswith(f"{console.path}/") and "//" not in path and "\\" not in path
    return path if inside and path.isprintable() else f"{console.path}/inbox"
