"""A deployment: questions in rounds, the work as a task, a yes in the middle, and a way back.

DEPLOY_DATA is the folder of the store and of the cluster's state.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from antiphon import Context, Server

DATA = Path(os.environ.get("DEPLOY_DATA", "."))
server = Server("deployments", store=f"sqlite:///{DATA / 'deployments.db'}")


class Target(BaseModel):
    """Where a release goes."""

    environment: Literal["staging", "production"]
    canary: int = Field(default=10, ge=1, le=50, description="Per cent of the traffic at first.")


def cluster(line: str) -> str:
    """Stand in for the cluster: every command is a line of a file."""
    with (DATA / "cluster.log").open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")
    return line


@server.tool
async def deploy(ctx: Context, service: str, release: str) -> str:
    """Roll a release out: a canary first, and the rest after somebody has looked at it."""
    target = await ctx.elicit(f"Where should {service} {release} go?", Target)
    await ctx.detach(f"deploying {service} {release} to {target.environment}")
    await ctx.once(
        "canary", cluster, f"{service} {release}: {target.canary} % of {target.environment}"
    )
    await ctx.report(1, 2, f"{target.canary} % of {target.environment} runs {release}")
    if not await ctx.approve(f"The canary of {service} runs. Roll out {release} to everybody?"):
        await ctx.once("back", cluster, f"{service} {release}: rolled back")
        return f"{service} {release} was rolled back."
    await ctx.once("everybody", cluster, f"{service} {release}: 100 % of {target.environment}")
    return f"{service} {release} runs everywhere in {target.environment}."


@deploy.on_cancel
async def take_back(service: str, release: str) -> None:
    """Undo what a cancelled deployment has begun."""
    cluster(f"{service} {release}: rolled back")
