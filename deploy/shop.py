"""The server of the images and manifests here; put yours in its place.

Store and keys come from the environment: ANTIPHON_STORE, and ANTIPHON_KEYS or ANTIPHON_KEYS_FILE.
"""

import os

from pydantic import BaseModel

from antiphon import Context, Elicit, Server

server = Server("shop", version="1.0.0")


class Size(BaseModel):
    gigabytes: int = 2


async def create_database(name: str, gigabytes: int, *, idempotency_key: str) -> str:
    """Stand for what would be billed; a real one gives the key to its provider."""
    return f"{name}-{gigabytes}-{idempotency_key[:8]}"


@server.tool(asks=(Elicit,))
async def provision(ctx: Context, name: str) -> str:
    """Create a database after its size was asked for and approved."""
    size = await ctx.elicit("How large should it be?", Size)
    if not await ctx.approve(f"Create {name} with {size.gigabytes} GB?"):
        return "Nothing was created."
    made = await ctx.once("create", create_database, name, size.gigabytes)
    return f"{made} was created, says {os.environ.get('HOSTNAME', 'a server')}."
