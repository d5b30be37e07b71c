"""`antiphon call --login`, `--device` and `antiphon logout`."""

import asyncio
import logging
import sys
import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from antiphon.cli.login.saved import KeyringClosed, SavedLogin, all_logins, forget_unreadable
from antiphon.cli.output import USAGE, errors, fail, say
from antiphon.client.targets.named import NamedTarget, Url
from antiphon.protocol.text import safe_line
from antiphon.protocol.web_url import is_private

if TYPE_CHECKING:
    from antiphon.client.login.device import DevicePrompt
    from antiphon.client.login.provider import LoginProvider

LoginMethod: TypeAlias = Literal["", "browser", "device"]
"""How a person signs in."""

LOGIN = Annotated[
    bool,
    typer.Option(
        "--login",
        help="Sign in with a browser where the server asks for it. The login is kept, in the "
        "keyring or a private file, and used by later commands; `antiphon logout` forgets it.",
    ),
]
DEVICE = Annotated[
    bool,
    typer.Option(
        "--device",
        help="Like --login, on any device: shows an address and a code to type there. For a "
        "machine without a browser.",
    ),
]
SERVER = Annotated[
    str | None, typer.Argument(metavar="[URL]", help="URL of the server; all servers without it.")
]

_SHOWN = 500


def login_of(
    target: NamedTarget, headers: Sequence[str], *, method: LoginMethod = ""
) -> "LoginProvider | None":
    """Return the login for a connection; None where there is none and none is asked for.

    Args:
        target: Where the connection goes.
        headers: The names of headers that are sent anyway; one with credentials goes first.
        method: How a person signs in if the server wants it; nobody does without one.
    """
    asked = bool(method)
    if not isinstance(target, Url):
        if asked:
            fail("--login needs the URL of a server", USAGE)
        return None
    url = target.text
    if any(name.lower() == "authorization" for name in headers):
        if asked:
            fail("--login and an Authorization header do not go together", USAGE)
        return None
    if not is_private(url):
        if asked:
            fail("--login needs an https URL without user name, or one of this machine", USAGE)
        return None
    kept = SavedLogin(url)
    if not asked and not kept.exists:
        return None
    # The flow logs what it raises, which is shown anyway.
    logging.getLogger("mcp.client.auth.oauth2").setLevel(logging.CRITICAL)
    if method == "browser":
        from antiphon.client.login.browser import BrowserSignIn

        return BrowserSignIn(url, kept, _open_page)
    if method == "device":
        from antiphon.client.login.device import DeviceSignIn

        return DeviceSignIn(url, kept, _show_code)
    from antiphon.client.login.provider import LoginProvider

    return LoginProvider(url, kept)


def has_login(url: Url) -> bool:
    """Return whether a login is kept for a server."""
    return is_private(url.text) and SavedLogin(url.text).exists


async def _open_page(url: str) -> None:
    """Send the person to a page; its address is shown, too, for another browser on this machine."""
    errors().print("Sign in here:", url, markup=False, soft_wrap=True, highlight=False)
    await asyncio.to_thread(webbrowser.open, url)


async def _show_code(prompt: "DevicePrompt") -> None:
    """Tell the person where to sign in on another device."""
    say(f"Open this page on any device: {prompt.page}")
    say(f"and type this code there: {safe_line(prompt.code, 100)}")
    if prompt.direct:
        say(f"or open the page with the code: {prompt.direct}")


def logout(server: SERVER = None) -> None:
    """Forget the login of a server, and have its tokens revoked where that is possible.

    Examples:

    \b
      antiphon logout https://shop.example/mcp
      antiphon logout
    """
    from antiphon.client.login.provider import revoke

    urls = [server.strip()] if server is not None else all_logins()
    for url in urls:
        kept = SavedLogin(url)
        if not kept.exists:
            fail(f"there is no login of {safe_line(url, _SHOWN)}", USAGE)
        login = kept.load()
        try:
            kept.forget()
        except KeyringClosed:
            fail(f"the keyring that holds the login of {safe_line(url, _SHOWN)} does not open")
        revoked = login is not None and revoke(login)
        end = "its tokens are revoked" if revoked else "its tokens may count until they expire"
        errors().print(f"Forgot {safe_line(url, _SHOWN)}; {end}.", markup=False, soft_wrap=True)
    if server is None:
        forget_unreadable()
    if not urls:
        print("There is no login.", file=sys.stderr)
