"""Who a person is: the names of callers and approvers, and when two names may be one person.

Two comparisons, for two purposes. What *gives* a right (the owner decides, the owner sees) compares
identities exactly, after the issuer has been brought into its normal form. What *takes* one (nobody
approves a call of their own, nobody counts twice) asks whether two names may be one person, and in
doubt says yes.
"""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from antiphon.protocol.request import Principal

LINK_ISSUER = "one-time-link"
"""The issuer of people whom a one-time link signs in: whoever has the keys said who they are."""

_WITHOUT_AUTHORITY = ("", LINK_ISSUER)
"""Issuers that do not say whose subjects theirs are: any issuer may know the same person."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=1_024)
def normal_issuer(issuer: str) -> str:
    """Return the one spelling of an issuer (RFC 3986, section 6.2), without a slash at the end."""
    text = issuer.strip()
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return text
    if not host:
        return text.rstrip("/")
    host = f"[{host}]" if ":" in host else host.rstrip(".")
    port_text = "" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{host}{port_text}{parts.path.rstrip('/')}{query}"


def identity_of(issuer: str, subject: str) -> str:
    """Return the name of a person in stores; equal for a caller and a person who are one."""
    parts = (normal_issuer(issuer), subject)
    return " ".join(part.replace("%", "%25").replace(" ", "%20") for part in parts)


def read_identity(identity: str) -> tuple[str, str]:
    """Return issuer and subject of an identity."""
    issuer, _, subject = identity.partition(" ")
    return _unescaped(issuer), _unescaped(subject)


def _unescaped(part: str) -> str:
    return part.replace("%20", " ").replace("%25", "%")


def caller_identity(principal: Principal) -> str:
    """Return the name of a caller as a person; empty when nobody was authenticated."""
    if not (principal.issuer or principal.subject):
        return ""
    return identity_of(principal.issuer, principal.subject)


def identities_behind(principal: Principal) -> tuple[str, ...]:
    """Return everybody who stands behind a call: the subject, and all who act for it."""
    found: dict[str, None] = {}
    if principal.subject:
        found[identity_of(principal.issuer, principal.subject)] = None
    for actor in (principal.actor, *principal.earlier_actors):
        if not actor:
            continue
        if " " in actor:
            found[identity_of(*read_identity(actor))] = None
        else:  # an author's own `principal=` may name the actor by its subject alone
            found[identity_of(principal.issuer, _unescaped(actor))] = None
    return tuple(found)


def may_be_one(identity: str, other: str) -> bool:
    """Tell whether two identities may be those of one person; in doubt they are.

    Compatible and invisible characters and the case of letters make no other person. An issuer
    without authority of its own, such as that of one-time links, may name the subject of any.
    """
    issuer, subject = _folded(identity)
    other_issuer, other_subject = _folded(other)
    if not subject or subject != other_subject:
        return False
    return issuer == other_issuer or not {issuer, other_issuer}.isdisjoint(_WITHOUT_AUTHORITY)


def may_be_one_of(identity: str, others: Iterable[str]) -> bool:
    """Tell whether an identity may be one of these people."""
    return any(may_be_one(identity, other) for other in others)


@lru_cache(maxsize=1_024)
def _folded(identity: str) -> tuple[str, str]:
    issuer, subject = read_identity(identity)
    return _fold(normal_issuer(issuer)), _fold(subject)


def _fold(text: str) -> str:
    """Return a text as people read it: composed, without case and without invisible characters."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return "".join(
        char for char in folded if unicodedata.category(char) not in ("Cf", "Cc")
    ).strip()
