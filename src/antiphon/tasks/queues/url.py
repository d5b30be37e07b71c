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
    # A URL may carry a password: what is said of one never holds it.
    match scheme := carrier.partition(":")[0].lower():
        case "leases":
            return None
        case "temporal":
            return _temporal(_parsed(carrier), server)
        case "nats" | "tls":
            return _nats([_parsed(url).geturl() for url in _servers(carrier, scheme)], server)
        case _ if ":" not in carrier:
            raise ConfigError(f"carrier= is no URL: it has no scheme. Known: {_KNOWN}")
        case _:
            raise ConfigError(f"carrier URL scheme {scheme!r} is not known. Known: {_KNOWN}")


def _servers(carrier: str, scheme: str) -> list[str]:
    """Return the URLs of a list with commas; those that follow may leave out the scheme."""
    first, *more = (url.strip() for url in carrier.split(","))
    return [first, *(url if "://" in url else f"{scheme}://{url}" for url in more if url)]


def _parsed(url: str) -> SplitResult:
    """Take a URL apart that must name a host, and may name a port."""
    try:
        parts = urlsplit(url)
        if parts.port != 0 and parts.hostname:
            return parts
    except ValueError:
        pass  # a port that is no number
    raise ConfigError(f"a carrier URL names no host, or a port that is none. Known: {_KNOWN}")


def _temporal(url: SplitResult, server: str) -> Carrier:
    namespace = url.path.strip("/") or "default"
    if url.username is not None or url.query or url.fragment or "/" in namespace:
        raise ConfigError(
            "a Temporal URL is temporal://host:port/namespace and nothing more. For TLS or an API "
            "key make the carrier: Server(carrier=TemporalCarrier(..., tls=True, api_key=...))"
        )
    try:
        from antiphon.tasks.queues.temporal import TemporalCarrier
    except ImportError as error:
        raise _missing(error, "temporal") from error
    host, port = url.hostname or "", url.port or 7233
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return TemporalCarrier(address, server, namespace=namespace)


def _nats(urls: list[str], server: str) -> Carrier:
    try:
        from antiphon.tasks.queues.nats import NatsCarrier
    except ImportError as error:
        raise _missing(error, "nats") from error
    return NatsCarrier(urls, server)


def _missing(error: ImportError, extra: str) -> Exception:
    """Return what is said of a client that is not installed; an error of our own stays as it is."""
    if (error.name or "").startswith("antiphon"):
        return error
    return ConfigError(f'this carrier needs the package {error.name}: install "antiphon[{extra}]"')
