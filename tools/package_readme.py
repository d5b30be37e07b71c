"""The README as a package index shows it: relative links would lead nowhere there.

With `Source` in `project.urls` they lead to the tagged version in the repository. Without it a link
becomes its text, and a picture is left out.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?![a-z]+:)[^)\s]+)\)")


def for_index(text: str, source: str | None, version: str) -> str:
    """Return the text with links that work away from the repository, or none."""

    def replaced(link: re.Match[str]) -> str:
        picture, words, target = link["picture"], link["text"], link["target"]
        if source is None:
            return "" if picture else words
        kind = "raw" if picture else "blob"
        return f"{picture}[{words}]({source.rstrip('/')}/{kind}/v{version}/{target})"

    changed = _LINK.sub(replaced, text)
    return re.sub(r"\n{3,}", "\n\n", changed)


class PackageReadme(MetadataHookInterface):
    """Writes the description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README; the version is known by now."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_index(text, source, str(metadata.get("version", ""))),
        }
