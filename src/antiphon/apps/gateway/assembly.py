"""From what an author says about a mount to the mount."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from antiphon.apps.gateway.mount import Mount, MountSettings
from antiphon.apps.gateway.mounts import Owners
from antiphon.apps.gateway.pins import ToolPins
from antiphon.apps.gateway.policy import Default, Policy
from antiphon.apps.gateway.upstream import UpstreamSettings
from antiphon.client.errors import CannotConnect
from antiphon.client.targets.target import TargetOptions, read_target
from antiphon.errors import ConfigError
from antiphon.handlers.foreign import ForeignHandlers
from antiphon.protocol.changes import Changes

Patterns = tuple[Iterable[str], Iterable[str], Iterable[str] | Mapping[str, str]]


def mount_of(
    handlers: ForeignHandlers,
    changes: Changes,
    target: object,
    *,
    prefix: str,
    policy: Patterns,
    era: str,
    timeout: float,
    checked: bool,
    options: Mapping[str, Any],
    theirs: Changes | None = None,
    default: Default | None = None,
    unmatched: str = "error",
    lock: str | Path | ToolPins | None = None,
    owners: Owners | None = None,
) -> Mount:
    """Return a mount that is not connected yet.

    Raises:
        ConfigError: The settings do not fit.
    """
    unknown = options.keys() - TargetOptions.__optional_keys__
    if unknown:
        raise ConfigError(f"mount() has no option {', '.join(sorted(unknown))}")
    if era not in ("auto", "modern", "legacy"):
        raise ConfigError(f"era={era!r} is none of 'auto', 'modern', 'legacy'")
    if not timeout > 0:
        raise ConfigError("timeout= must be greater than zero")
    try:
        read_target(target, TargetOptions(**options))
    except CannotConnect as error:
        raise ConfigError(str(error)) from None
    upstream = UpstreamSettings(
        target=target,
        name=prefix or shown_target(target),
        era=era,
        timeout=timeout,
        options=dict(options),
    )
    if unmatched not in ("error", "warn"):
        raise ConfigError(f"unmatched={unmatched!r} is none of 'error', 'warn'")
    settings = MountSettings(
        upstream=upstream,
        policy=Policy.read(*policy, default=default),
        prefix=prefix,
        checked=checked,
        lenient=unmatched == "warn",
        pins=ToolPins.read(Path(lock)) if isinstance(lock, str | Path) else lock,
    )
    return Mount(settings, handlers, changes, theirs, owners)


def shown_target(target: object) -> str:
    """Return a target as logs show it: no credentials, no query, no arguments of a command."""
    if isinstance(target, str) and "://" in target:
        parts = urlsplit(target)
        return f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    if isinstance(target, str):
        return shlex.split(target)[0]
    if isinstance(target, list | tuple):
        return str(cast("list[object]", target)[0])
    name = getattr(target, "name", None)
    return name if isinstance(name, str) else type(target).__name__
