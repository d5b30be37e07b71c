"""What a gateway is made of: its settings, as a file keeps them, and the server they describe."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from antiphon import CallEnd, Console, OAuth, Server
from antiphon.apps.gateway.pins import ToolPins
from antiphon.apps.gateway.policy import Default, SharedPattern
from antiphon.cli.written_files import NotWritten, make_folder, open_to_append
from antiphon.client.errors import CannotConnect
from antiphon.client.targets.named import Url, parse_target
from antiphon.errors import ConfigError
from antiphon.protocol.web_url import is_loopback

STORE = "sqlite:///.antiphon/gateway.db"
"""Where a gateway keeps what happened once, unless told otherwise."""

_NAME = re.compile(r"[A-Za-z0-9.-]{1,60}")
_FROM_ENVIRONMENT = "env:"
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
"""Names of variables whose values are credentials, however they are written."""

_LARGEST = 1024 * 1024

_UNKNOWN_CALLERS = "Nobody knows who calls this gateway"
_WHAT_TO_DO = (
    "Add [auth] to its file (issuer, audience), or say with --open, or `open = true`, that "
    "everybody may use it."
)

Era = Literal["auto", "modern", "legacy"]


class OAuthClient(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client of the authorization server of a target; the official SDK does the rest."""

    client_id: str
    client_secret: str
    """`env:NAME`: the environment variable that holds it."""

    issuer: str
    """The authorization server: the secret is sent nowhere else, whatever the target says."""

    scope: str | None = None


class UpstreamEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One server behind the gateway."""

    target: str | list[str]
    """A URL, or a command as a text or as a list of words."""

    name: str = ""
    """Put before the names of its tools and prompts."""

    era: Era = "auto"
    timeout: float = 300.0
    headers: dict[str, str] = {}
    """Sent to a URL with every request; `env:NAME` stands for an environment variable."""

    oauth: OAuthClient | None = None
    env: dict[str, str] = {}
    """For a command, besides a few inherited variables."""

    not_done: list[int] = []
    """HTTP statuses with which the server says that it has not acted, such as 503."""

    @property
    def holds_credentials(self) -> bool:
        """Whether the server may take the gateway for somebody."""
        in_url = isinstance(self.target, str) and "@" in self.target.partition("://")[2]
        in_env = any(
            value.startswith(_FROM_ENVIRONMENT) or _SECRET.search(name)
            for name, value in self.env.items()
        )
        return bool(self.headers or self.oauth or in_env or in_url)


class CallerAuth(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose access tokens the gateway's own callers bring; see `OAuth`."""

    issuer: str
    audience: str
    """The URL at which clients reach the gateway."""

    scopes: list[str] = []
    resource: str = ""
    client_id: str = ""
    client_secret: str = ""
    """`env:NAME`: the environment variable that holds it."""


class GatewayFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A gateway, as its file describes it."""

    upstream: list[UpstreamEntry]
    name: str = "gateway"
    store: str | None = None
    console: str | None = None
    """Where people reach the pages in which they approve."""

    allow: list[str] = []
    deny: list[str] = []
    approve: dict[str, str] = {}
    """From patterns of tools to roles; an empty role is the caller."""

    default: Default | None = None
    """What becomes of tools that no pattern names."""

    unmatched: Literal["error", "warn"] = "error"
    """What becomes of a pattern that names nothing."""

    lock: str | None = None
    """The file with the digests of the tools that the operator has seen."""

    auth: CallerAuth | None = None
    """How callers are known."""

    open: bool = False
    """Whether everybody who reaches the gateway may use it, with the credentials it holds."""

    audit: str | None = None

    @property
    def holds_credentials(self) -> bool:
        """Whether the servers behind take the gateway for somebody."""
        return any(entry.holds_credentials for entry in self.upstream)


def read_gateway(file: Path) -> GatewayFile:
    """Read the settings of a gateway.

    Raises:
        ConfigError: The file cannot be read, or says something else.
    """
    try:
        with file.open("rb") as stream:
            text = stream.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ConfigError(f"{file} is too large for the settings of a gateway")
        return msgspec.convert(tomllib.loads(text.decode()), GatewayFile)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file} does not describe a gateway: {error}") from None


def write_gateway(settings: GatewayFile) -> str:
    """Return the text of a file that describes the same gateway."""
    plain = _plain(settings)
    upstream = cast("list[dict[str, Any]]", plain.pop("upstream"))
    approve = cast("dict[str, str]", plain.pop("approve"))
    auth = cast("dict[str, object] | None", plain.pop("auth"))
    standard = _plain(GatewayFile(upstream=[]))
    lines = [
        f"{name} = {_toml(value)}"
        for name, value in plain.items()
        if value != standard[name] or name == "name"
    ]
    if auth is not None:
        lines += ["", "[auth]", *(f"{name} = {_toml(one)}" for name, one in auth.items() if one)]
    if approve:
        rules = [f"{_toml(pattern)} = {_toml(role)}" for pattern, role in approve.items()]
        lines += ["", "[approve]", *rules]
    usual = _plain(UpstreamEntry(target=""))
    for entry in upstream:
        lines += ["", "[[upstream]]"]
        lines += [f"{name} = {_toml(one)}" for name, one in entry.items() if one != usual[name]]
    return "\n".join(lines) + "\n"


def _plain(entry: msgspec.Struct) -> dict[str, Any]:
    return cast("dict[str, Any]", msgspec.to_builtins(entry))


def _toml(value: object) -> str:
    """Write a value: texts, numbers and lists of texts are in TOML as they are in JSON."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        members = [f"{_toml(name)} = {_toml(one)}" for name, one in items if one is not None]
        return "{ " + ", ".join(members) + " }"
    return msgspec.json.encode(value).decode()


# --- the server ----------------------------------------------------------------------------------


def check_callers(settings: GatewayFile, *hosts: str) -> None:
    """Refuse to serve strangers with credentials, or beyond this machine, unless that is meant.

    Args:
        settings: Of the gateway.
        hosts: Where it listens, and the names under which it is reached.

    Raises:
        ConfigError: Nobody would know who calls.
    """
    if settings.auth is not None or settings.open:
        return
    if settings.holds_credentials:
        raise ConfigError(
            f"{_UNKNOWN_CALLERS}, and it holds credentials for the servers behind it. {_WHAT_TO_DO}"
        )
    for host in hosts:
        if not is_loopback(host.strip("[]")):
            raise ConfigError(
                f"{_UNKNOWN_CALLERS}, and {host or 'every address'} can be reached from other "
                f"machines. {_WHAT_TO_DO}"
            )


def gateway_server(settings: GatewayFile, pins: ToolPins | None = None) -> Server:
    """Return the server that settings describe; nothing is connected yet.

    Args:
        settings: Of the gateway.
        pins: Instead of those of the lock file.

    Raises:
        ConfigError: They do not fit together.
    """
    entries = settings.upstream
    if not entries:
        raise ConfigError("a gateway needs a server behind it")
    names = [entry.name for entry in entries]
    if len(entries) > 1 and (not all(names) or len({n.lower() for n in names}) < len(names)):
        raise ConfigError(
            "several servers behind one gateway need a name each: they become prefixes"
        )
    for name in filter(None, names):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"the name {name!r} is not made of at most 60 of A-Z a-z 0-9 . -")
    server = Server(
        settings.name,
        store=_store(settings.store),
        console=None if settings.console is None else Console(settings.console),
        auth=_auth(settings.auth),
    )
    if pins is None and settings.lock is not None:
        pins = ToolPins.read(Path(settings.lock))
    for entry in entries:
        _mount(server, settings, entry, pins)
    if settings.audit is not None:
        server.on_end(AuditFile(settings.audit))
    return server


def _auth(given: CallerAuth | None) -> OAuth | None:
    if given is None:
        return None
    return OAuth(
        given.issuer,
        audience=given.audience,
        scopes=given.scopes,
        resource=given.resource,
        client_id=given.client_id,
        client_secret=_value(given.client_secret),
    )


def _patterns(patterns: Iterable[str], name: str, names: list[str]) -> list[SharedPattern]:
    """Return the patterns that are for one server.

    One that begins with the name of a server and `_` is for that server alone.
    """
    found: list[SharedPattern] = []
    for pattern in patterns:
        mark, colon, rest = pattern.partition(":")
        bare = rest if colon and mark in ("tool", "prompt") else pattern
        of = next((one for one in names if one and bare.lower().startswith(f"{one}_".lower())), "")
        if not of or of == name:
            found.append(SharedPattern(pattern))
    return found


def _mount(
    server: Server, settings: GatewayFile, entry: UpstreamEntry, pins: ToolPins | None
) -> None:
    options: dict[str, Any] = {}
    if (entry.headers or entry.oauth or entry.not_done) and not is_url(entry.target):
        raise ConfigError("headers, OAuth and not_done are for a URL; give a command its env")
    if entry.headers:
        options["headers"] = {name: _value(value) for name, value in entry.headers.items()}
    if entry.oauth is not None:
        from antiphon.apps.gateway.oauth import client_credentials

        oauth, secret = entry.oauth, _value(entry.oauth.client_secret)
        options["auth"] = client_credentials(
            str(entry.target), oauth.client_id, secret, issuer=oauth.issuer, scope=oauth.scope
        )
    if entry.not_done:
        options["not_done"] = entry.not_done
    if entry.env:
        options["env"] = {name: _value(value) for name, value in entry.env.items()}
    names = [one.name for one in settings.upstream]
    allow = _patterns(settings.allow, entry.name, names)
    approve = _patterns(settings.approve, entry.name, names)
    default = settings.default or ("deny" if settings.allow else None)
    if settings.allow and not allow and default == "deny":
        approve = []  # an approval does not make visible what nobody has allowed
    server.mount(
        entry.target,
        prefix=entry.name,
        allow=allow,
        deny=_patterns(settings.deny, entry.name, names),
        approve={pattern: settings.approve[pattern] for pattern in approve},
        default=default,
        unmatched=settings.unmatched,
        lock=pins,
        era=entry.era,
        timeout=entry.timeout,
        **options,
    )


def is_url(target: str | list[str]) -> bool:
    """Return whether a target is a URL; the parser of targets decides.

    Raises:
        ConfigError: It is no target.
    """
    try:
        return isinstance(target, str) and isinstance(parse_target(target), Url)
    except CannotConnect as error:
        raise ConfigError(str(error)) from None


def _value(text: str) -> str:
    """Return a value, or that of the environment variable that it names."""
    if not text.startswith(_FROM_ENVIRONMENT):
        return text
    name = text.removeprefix(_FROM_ENVIRONMENT)
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"the environment variable {name} is not set")
    return value


def _store(given: str | None) -> str:
    """Return the URL of the store, and make the folder of the usual one."""
    store = given or os.environ.get("ANTIPHON_STORE") or STORE
    if store == STORE:
        _make_folder(Path(STORE.removeprefix("sqlite:///")).parent)
    return store


def _make_folder(folder: Path) -> None:
    try:
        make_folder(folder)
    except NotWritten as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made: {error.strerror}. Run the command in a folder that you can "
            "write to, or set ANTIPHON_STORE"
        ) from None


class AuditFile:
    """Appends a line of JSON for each call that has ended; `-` is standard error."""

    def __init__(self, path: str) -> None:
        """Open the file, readable by its owner only.

        Raises:
            ConfigError: It cannot be opened.
        """
        try:
            self._file = 2 if path == "-" else open_to_append(Path(path), _is_audit)
        except NotWritten as error:
            raise ConfigError(str(error)) from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None

    def __call__(self, end: CallEnd) -> None:
        """Write one line."""
        who = end.principal
        line = {
            "at": round(end.at, 3),
            "call": end.call,
            "kind": end.kind,
            "name": end.name,
            "issuer": who.issuer,
            "subject": who.subject,
            "client": who.client_id,
            "transport": who.transport,
            "era": end.era,
            "rounds": end.rounds,
            "outcome": end.outcome,
            "task": end.task,
        }
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def _is_audit(start: bytes) -> bool:
    """Return whether a file begins with a line of an `AuditFile`; an empty one may become one."""
    line, _, _ = start.partition(b"\n")
    try:
        return not start or {"call", "outcome"} <= msgspec.json.decode(line, type=dict).keys()
    except msgspec.DecodeError:
        return False
