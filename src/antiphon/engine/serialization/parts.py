"""What values hold: their parts, and the secrets among them."""

import functools
from collections import deque
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from antiphon.forms.models import is_model_type

if TYPE_CHECKING:
    from pydantic import Secret


def parts(value: Any) -> Iterable[Any]:
    """Return what a container, a member of an enumeration, a model or a dataclass holds."""
    if isinstance(value, Enum):
        return (value.value,)
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).values()
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        return cast("list[Any]", value)
    if is_model_type(cast("type[Any]", type(value))):
        return (field for _, field in value)
    if is_dataclass(value) and not isinstance(value, type):
        return (getattr(value, field.name, None) for field in fields(value))
    return ()


STARS = b"**********"
"""What pydantic writes for a secret."""


@functools.cache
def secret_types() -> tuple[type[Any], ...]:
    """Return the types of secrets; they take long to import, and most programs have none."""
    from pydantic import Secret, SecretBytes, SecretStr

    return Secret, SecretStr, SecretBytes


def has_secret(value: Any) -> bool:
    """Return whether there is a secret in a value."""
    return isinstance(value, secret_types()) or any(map(has_secret, parts(value)))


def revealed(value: Any) -> Any:
    """Replace every secret by what it hides."""
    if isinstance(value, secret_types()):
        return cast("Secret[Any]", value).get_secret_value()
    if not has_secret(value):
        return value
    if isinstance(value, dict):
        return {name: revealed(inner) for name, inner in cast("dict[Any, Any]", value).items()}
    if is_model_type(cast("type[Any]", type(value))):
        return {name: revealed(inner) for name, inner in value}
    if is_dataclass(value):
        return {f.name: revealed(getattr(value, f.name, None)) for f in fields(value)}
    return [revealed(inner) for inner in cast("list[Any]", value)]
