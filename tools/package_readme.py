"""What a package index shows: the addresses of the project, and a README whose links work there.

Where the package is built by the repository's own workflow, the addresses are those of the
repository, and relative links lead to the tagged version in it. Built elsewhere, a link becomes its
text, and a picture is left out.
"""

import os
import re
from collections.abc import Mapping
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


def addresses(environment: Mapping[str, str], version: str) -> dict[str, str]:
    """Return `project.urls` by the variables that the workflow's machine sets; none elsewhere."""
    host, name = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
    if not host or not name:
        return {}
    source = f"{host}/{name}"
    return {
        "Source": source,
        "Documentation": f"{source}/blob/v{version}/docs/README.md",
        "Changelog": f"{source}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{source}/issues",
    }


class PackageReadme(MetadataHookInterface):
    """Writes the addresses and the description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both; the version is known by now."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        version = str(metadata.get("version", ""))
        urls = addresses(os.environ, version)
        if urls:
            metadata["urls"] = urls
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_index(text, urls.get("Source"), version),
        }
