"""A code reviewer without a model of its own: it asks the client's about files of its own."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

from antiphon import Context, Root, Server, ToolError

server = Server("reviewer")

LONGEST = 20_000
QUESTION = (
    "Review this file. One finding in a line, the line's number first; nothing else.\n\n{text}"
)


class Keep(BaseModel):
    """What becomes of the findings."""

    write: bool


@server.tool
async def review(ctx: Context, file: str) -> str:
    """Review a file of the workspace, and write the findings beside it if the person agrees."""
    path = inside(await ctx.roots(), file)
    text = await ctx.memo("text", read, str(path))
    answer = await ctx.sample(QUESTION.format(text=text), max_tokens=1_000)
    findings = [line for line in answer.text.splitlines() if line.strip()]
    if not findings:
        return "Nothing found."
    kept = await ctx.elicit(f"{len(findings)} findings. Write them to {path.name}.review?", Keep)
    if kept.write:
        await ctx.once("write", write, f"{path}.review", "\n".join(findings))
    return "\n".join(findings)


def inside(roots: list[Root], file: str) -> Path:
    """Find a file in the workspace; everything else is none of our business."""
    for root in roots:
        folder = Path(unquote(urlsplit(root.uri).path)).resolve()
        path = (folder / file).resolve()
        if path.is_relative_to(folder) and path.is_file():
            return path
    raise ToolError(f"There is no file {file} in the workspace.")


def read(path: str) -> str:
    """Read a file; what was read is remembered, so every round talks about the same text."""
    return Path(path).read_text(encoding="utf-8")[:LONGEST]


def write(path: str, text: str) -> None:
    """Write the findings."""
    Path(path).write_text(text + "\n", encoding="utf-8")
