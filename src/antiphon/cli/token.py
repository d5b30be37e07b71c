"""`antiphon keygen` makes a key; `antiphon token inspect` shows the contents of a token.

Shown are the claims and the keys of the journal. Answers and other values need `--reveal`.
"""

import asyncio
import json
import os
import secrets
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer

from antiphon.cli.output import USAGE, fail
from antiphon.cli.readable_help import ReadableGroup
from antiphon.errors import ConfigError, TokenRefused
from antiphon.seal.claims import Claims
from antiphon.seal.key_sources import keys_from
from antiphon.seal.keyring import Keyring, generate_key
from antiphon.seal.sealer import Sealer

token: typer.Typer = typer.Typer(
    cls=ReadableGroup, no_args_is_help=True, help="Read tokens with the keys of their server."
)

REFUSED = (
    "the token cannot be read: it was sealed with other keys, is damaged, or is of another release"
)
"""One text for every reason, as on the wire."""


def keygen() -> None:
    """Print a new key for ANTIPHON_KEYS, or for a file of keys: 32 random bytes in hex.

    To replace a key without losing calls, change the keys in three steps, each on every process
    before the next: old,new (all can open both), then new,old (all seal with the new one), and,
    when the last token of the old key has expired, new. ANTIPHON_KEYS_FILE names a file that holds
    them in the same order, or a directory of such files.
    """
    print(generate_key())


@token.callback()
def group() -> None:
    """Read tokens with the keys of their server."""


@token.command()
def inspect(
    text: Annotated[str, typer.Argument(metavar="TOKEN", help="The token, as a client holds it.")],
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Show answers and other values of the journal too.")
    ] = False,
) -> None:
    """Print the contents of a token as JSON: claims, open questions, keys of the journal.

    ANTIPHON_KEYS must hold the server's keys. --reveal also prints answers, which may be private.

    Example:

    \b
      ANTIPHON_KEYS=... antiphon token inspect TOKEN
    """
    sealer = Sealer(
        _keyring(),
        ttl=timedelta(minutes=1),
        audience="",
        clock=lambda: datetime.now(UTC).timestamp(),
        entropy=secrets.token_bytes,
    )
    try:
        claims = asyncio.run(sealer.inspect(text))
    except TokenRefused:
        fail(REFUSED)
    shown = msgspec.to_builtins(_plain(claims, reveal=reveal))
    print(json.dumps(shown, ensure_ascii=True, indent=2))


def _keyring() -> Keyring:
    try:
        keyring = keys_from(os.environ)
    except ConfigError as error:
        fail(str(error), USAGE)
    if keyring is None:
        fail("set ANTIPHON_KEYS to the server's keys: only they open its tokens", USAGE)
    return keyring


def _plain(claims: Claims, *, reveal: bool) -> dict[str, Any]:
    times = {"issued": claims.issued, "expires": claims.expires, "deadline": claims.deadline}
    journal = claims.journal
    shown: dict[str, Any] = {
        "call": claims.call,
        "round": claims.round,
        "method": claims.method,
        "target": claims.target,
        "handler": claims.handler,
        "version": claims.version,
        "audience": claims.audience,
        "principal": msgspec.structs.asdict(claims.principal),
        **{name: _time(at) for name, at in times.items()},
        "pending": [{"key": each.key, "kind": each.kind} for each in claims.pending],
        "stored": claims.handle is not None,
    }
    if journal is not None:
        shown["journal"] = [
            {"kind": each.kind, "key": each.key, **({"value": each.value()} if reveal else {})}
            for each in journal.entries
        ]
        if reveal:
            shown["state"] = None if journal.state is None else msgspec.json.decode(journal.state)
    return shown


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
