"""An HTTP API as a server: every operation is a tool, and some need a yes first."""

from antiphon import Server


def orders(document: str, url: str, key: str) -> Server:
    """Serve an API by its OpenAPI document."""
    return Server.from_openapi(
        document,
        url=url,
        headers={"X-Api-Key": key},
        deny=["be_slow"],
        approve=["DELETE *"],
    )
