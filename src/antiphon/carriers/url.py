"""From `carrier=` to a carrier. Owns the spelling of URLs; loads a client only when it is named."""

from urllib.parse import SplitResult, urlsplit

from antiphon.errors import ConfigError
from antiphon.ports import Carrier

_KNOWN = "temporal://host:port/namespace, nats://host:port, tls://host:port (NATS), leases:"


def open_carrier(carrier: str | Carrier | None, server: str) -> Carrier | None:
    """Make the carrier that a URL names; nothing is connected yet.

    Args:
        carrier: A URL or a carrier; it is given back as it is.
        server: The name under which the server's tasks are kept: workers of other servers on the
            same engine leave them alone.

    Returns None for None and for `leases:`: workers claim tasks from the store.

    Raises:
        ConfigError: The URL names no carrier, or the extra that it needs is not installed.
    """
    if carrier is None or not isinstance(carrier, str):
        return carrier
    try:
        url = urlsplit(carrier)
        port = url.port  # a port that is no number is found here
    except ValueError:
        raise ConfigError(f"carrier= is no URL. Known: {_KNOWN}") from None
    match url.scheme:
        case "leases":
            return None
        case "temporal":
            return _temporal(url, port or 7233, server)
        case "nats" | "tls":
            return _nats(carrier, server)
        case _:
            # Without the rest: a URL may carry a password.
            raise ConfigError(f"carrier URL scheme {url.scheme!r} is not known. Known: {_KNOWN}")


def _temporal(url: SplitResult, port: int, server: str) -> Carrier:
    try:
        from antiphon.carriers.temporal import TemporalCarrier
    except ImportError as error:
        raise _missing(error, "temporal") from error
    host = url.hostname or "127.0.0.1"
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return TemporalCarrier(address, server, namespace=url.path.strip("/") or "default")


def _nats(url: str, server: str) -> Carrier:
    try:
        from antiphon.carriers.nats import NatsCarrier
    except ImportError as error:
        raise _missing(error, "nats") from error
    return NatsCarrier(url, server)


def _missing(error: ImportError, extra: str) -> Exception:
    """Return what is said of a client that is not installed; an error of our own stays as it is."""
    if (error.name or "").startswith("antiphon"):
        return error
    return ConfigError(f'this carrier needs the package {error.name}: install "antiphon[{extra}]"')
