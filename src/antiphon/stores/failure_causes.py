"""Why a database refuses or cannot be reached, in words for an operator.

The text of a driver may hold values or a password, so it is never passed on. It is compared with
what databases say in the common cases, and only the names of the URL are taken from it.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple


class Cause(NamedTuple):
    """What an operator learns, and what to do about it."""

    what: str
    advice: str


_Rules = Sequence[tuple[re.Pattern[str], str, str]]


def _rule(pattern: str, what: str, advice: str) -> tuple[re.Pattern[str], str, str]:
    return re.compile(pattern, re.IGNORECASE), what, advice


_START = "Check that the database is reachable and try again"
_URL = "Correct the store's URL"
_POSTGRES: _Rules = (
    _rule(
        r'invalid (?:URI query parameter:|connection option) "(?P<name>\w{1,64})"',
        "its URL has a parameter {name!r} that PostgreSQL does not know",
        _URL,
    ),
    _rule(
        r"invalid percent-encoded token|missing key/value separator|unexpected spaces found"
        r"|extra key/value separator|missing matching|invalid (?:port number|integer value)"
        r"|unexpected character",
        "its URL cannot be read",
        "Correct the store's URL; write special characters of a password as %40 and the like",
    ),
    _rule(
        r'database "(?P<name>[^"]{1,128})" does not exist', "there is no database {name!r}", _URL
    ),
    _rule(
        r'(?:password|peer|ident|GSSAPI|SCRAM|certificate) authentication failed for user '
        r'"(?P<name>[^"]{1,128})"',
        "the server refuses user {name!r}: wrong user or password",
        _URL,
    ),
    _rule(
        r'role "(?P<name>[^"]{1,128})" does not exist', "there is no database user {name!r}", _URL
    ),
    _rule(r"no password supplied", "the server wants a password, and the URL has none", _URL),
    _rule(
        r"no pg_hba\.conf entry",
        "the server lets no one in from this machine with this user and database",
        "Add them to its pg_hba.conf, or correct the store's URL",
    ),
    _rule(
        r"too many (?:clients|connections)|remaining connection slots",
        "the server has no free connections",
        "Raise its max_connections, or start fewer processes",
    ),
    _rule(r"database system is (?:starting up|shutting down|in recovery)",
          "the server is starting or stopping", "Try again"),
    _rule(
        r"SSL|certificate verify|TLS",
        "the encrypted connection failed",
        "Check sslmode and the certificates in the store's URL",
    ),
    _rule(
        r'server at "(?P<name>[^"]{1,255})"(?: \([^)]*\))?, port (?P<port>\d+) failed: '
        r"Connection refused",
        "nothing listens at {name}, port {port}",
        _START,
    ),
    _rule(
        r'socket "(?P<name>[^"]{1,255})" failed: (?:No such file|Connection refused)',
        "nothing listens at the socket {name}",
        _START,
    ),
)  # fmt: skip
_REDIS: _Rules = (
    _rule(r"WRONGPASS|invalid (?:username-password|password)", "wrong user or password", _URL),
    _rule(r"NOAUTH|Authentication required", "it wants a password, and the URL has none", _URL),
    _rule(r"AUTH.{0,40}without any password|AUTH failed",
          "it wants no password, and the URL has one", _URL),
    _rule(r"NOPERM", "its user lacks rights", "Give it the commands and keys that it needs"),
    _rule(r"DB index is out of range", "it has no database of this number", _URL),
    _rule(r"LOADING", "it is still loading its data", "Try again"),
    _rule(r"max number of clients", "it has no free connections", "Raise its maxclients"),
    _rule(r"connecting to (?P<name>\S{1,255})\. (?:Connection refused|Connect call failed)",
          "nothing listens at {name}", "Check that it is reachable and try again"),
)  # fmt: skip
_NETWORK: _Rules = (
    _rule(
        r"failed to resolve host|could not translate host name|Name or service not known"
        r"|nodename nor servname|Temporary failure in name resolution|No address associated",
        "its host name cannot be resolved",
        _URL,
    ),
    _rule(r"Connection refused", "nothing listens at its address", _START),
    _rule(r"No route to host|Network is unreachable", "its network cannot be reached", _START),
    _rule(r"timeout expired|timed out", "it does not answer in time", _START),
    _rule(r"closed the connection|Connection reset|Broken pipe|connection is (?:closed|lost|bad)",
          "it closed the connection", _START),
)  # fmt: skip


def find_postgres_cause(text: str) -> Cause | None:
    """Return why PostgreSQL refuses, by what the driver says; None when that is unknown."""
    return _find(text, (*_POSTGRES, *_NETWORK))


def find_redis_cause(text: str) -> Cause | None:
    """Return why Redis refuses, by what the driver says; None when that is unknown."""
    return _find(text, (*_REDIS, *_NETWORK))


def _find(text: str, rules: _Rules) -> Cause | None:
    for pattern, what, advice in rules:
        found = pattern.search(text)
        if found is not None:
            return Cause(what.format(**found.groupdict()), advice)
    return None
