"""The client: calls run to the end, one round at a time, and who answers."""

from typing import Any

from antiphon.client import (
    Accept,
    Answers,
    BlockingClient,
    Client,
    ClientError,
    Decline,
    FormAsk,
    SampleAsk,
    Scripted,
    StateRefused,
    Timeouts,
    UrlAsk,
)


async def to_the_end(target: Any, answers: Any) -> str:
    async with Client(target, answers=answers) as client:
        result = await client.call_tool("provision", {"name": "orders"})
    return result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]


async def one_round(target: Any, shelf: dict[str, str]) -> None:
    async with Client(target) as client:
        step = await client.begin("provision", {"name": "orders"})
        if step.waiting:
            shelf["orders"] = step.dump()


async def next_week(target: Any, shelf: dict[str, str], answers: dict[str, Any]) -> Any:
    async with Client(target) as client:
        try:
            step = await client.resume(shelf["orders"], answers)
        except StateRefused as refused:
            step = await client.restart(refused)
        shelf["orders"] = step.dump()
        return step


async def background(target: Any, answers: Any) -> str:
    async with Client(target, answers=answers) as client:
        result = await client.call_tool("rebuild", on_task=lambda task: print(task.message))
    return result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]


async def leave(target: Any, shelf: dict[str, str]) -> None:
    async with Client(target) as client:
        step = await client.begin("rebuild")
        if step.task is not None:
            shelf["rebuild"] = step.dump()


async def come_back(target: Any, shelf: dict[str, str], answers: dict[str, Any]) -> Any:
    async with Client(target) as client:
        step = await client.resume(shelf["rebuild"], answers, wait=30)
        if step.waiting:
            await client.cancel(step)
        return step


def script() -> Scripted:
    return Scripted(
        placement={"region": "eu-west", "size": 4},
        approve=Accept({"approve": True}),
    )


def functions() -> Answers:
    def fill(ask: FormAsk) -> Any:
        return {"region": "eu-west"} if ask.key == "placement" else Decline()

    async def complete(ask: SampleAsk) -> str:
        return f"an answer of at most {ask.max_tokens} tokens"

    def visit(ask: UrlAsk) -> Any:
        return Accept() if ask.host == "id.example" else Decline()

    return Answers(elicit=fill, elicit_url=visit, sample=complete, roots=lambda ask: ["/srv"])


def combined(person: Any) -> Any:
    return script() | person


async def bounded(target: Any, answers: Any, shelf: dict[str, str]) -> None:
    timeouts = Timeouts(rounds=10, total=3600, answer=900, reply=300)
    async with Client(target, answers=answers, timeouts=timeouts) as client:
        try:
            await client.call_tool("provision", {"name": "orders"})
        except ClientError as error:
            if error.step is None:
                raise
            shelf["orders"] = error.step.dump()


def blocking(url: str, answers: Any) -> str:
    with BlockingClient(url, answers=answers) as client:
        result = client.call_tool("provision", {"name": "orders"})
    return result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]
