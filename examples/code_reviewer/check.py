"""Check the reviewer over stdio: roots, a model of the client's, a yes, and files it must not read.

python -m examples.code_reviewer.check
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from antiphon import Answers, Client
from antiphon.client import FormAsk, SampleAsk
from examples.processes import antiphon

SERVER = Path(__file__).with_name("server.py")
CODE = "def half(n):\n    return n / 0\n"


async def story(folder: Path) -> None:
    """Review a file, and try to have others read."""
    asked: list[str] = []

    def complete(ask: SampleAsk) -> str:
        asked.append(str(ask.messages))
        return "2: division by zero\n"

    def fill(ask: FormAsk) -> dict[str, bool]:
        return {"write": True}

    answers = Answers(elicit=fill, sample=complete, roots=lambda ask: [folder / "work"])
    async with Client(antiphon("serve", str(SERVER), "--stdio"), answers=answers) as client:
        result = await client.call_tool("review", {"file": "half.py"})
        print(result.content[0].text)  # pyright: ignore[reportAttributeAccessIssue]
        assert "n / 0" in asked[0]
        assert (folder / "work" / "half.py.review").read_text() == "2: division by zero\n"
        for file in ("../secret.txt", "/etc/hostname", "link.txt", "missing.py"):
            refused = await client.call_tool("review", {"file": file})
            assert refused.is_error, file
        assert len(asked) == 1


def main() -> int:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "work").mkdir()
        (folder / "work" / "half.py").write_text(CODE)
        (folder / "secret.txt").write_text("secret")
        (folder / "work" / "link.txt").symlink_to(folder / "secret.txt")
        asyncio.run(story(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
