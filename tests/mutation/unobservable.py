"""The mutants that no test can tell from the original, each with the reason, and their page."""

import tomllib
from pathlib import Path

LIST = Path(__file__).with_name("unobservable.toml")


def read_unobservable() -> dict[str, str]:
    """Return the reasons by the names of mutants."""
    data = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return {entry["mutant"]: entry["reason"] for entry in data.get("unobservable", [])}


def rows() -> list[str]:
    """Return the list as rows of a Markdown table."""
    return [
        f"| `{name.replace('|', chr(92) + '|')}` | {reason} |"
        for name, reason in sorted(read_unobservable().items())
    ]
