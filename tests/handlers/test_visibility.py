"""What a caller may not know of: neither listed nor found, as if it did not exist."""

import logging
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import CachePolicy, ConfigError, Context, Limits, Server
from antiphon.protocol.request import Era, Principal, Request
from antiphon.testing import Rounds

ADA = Principal(transport="process", subject="ada")
BOB = Principal(transport="process", subject="bob")
ERAS: list[Era] = ["modern", "legacy"]


class Size(BaseModel):
    gb: int


def for_ada(principal: Principal) -> bool:
    return principal.subject == "ada"


def make(**settings: Any) -> Server:
    server = Server("shop", **settings)

    @server.tool
    async def show() -> str:
        return "shown"

    @server.tool(visible=for_ada)
    async def refund(ctx: Context) -> str:
        return f"{(await ctx.elicit('How much?', Size)).gb}"

    @server.tool
    async def find() -> str:
        return "found"

    return server


async def names(rounds: Rounds, principal: Principal) -> list[str]:
    found: list[str] = []
    cursor: dict[str, Any] = {}
    while True:
        page: Any = (await rounds.send("tools/list", cursor, principal=principal)).result
        found += [tool["name"] for tool in page["tools"]]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


@pytest.mark.parametrize("page", [1, 2, 100])
async def test_each_caller_is_listed_what_it_may_call(page: int) -> None:
    async with Rounds(make(limits=Limits(page=page))) as rounds:
        for _ in range(2):
            assert await names(rounds, ADA) == ["show", "refund", "find"]
            assert await names(rounds, BOB) == ["show", "find"]


@pytest.mark.requirement("TOOL-03")
@pytest.mark.parametrize("era", ERAS)
async def test_a_hidden_tool_is_refused_like_one_that_does_not_exist(era: Era) -> None:
    async with Rounds(make(), era=era) as rounds:
        hidden = await rounds.call("refund", principal=BOB)
        unknown = await rounds.call("return", principal=BOB)
        done = await rounds.call("refund", principal=ADA, answers={"size": {"gb": 4}})
    assert hidden.text == "Unknown tool: refund"
    assert unknown.text == "Unknown tool: return"
    assert hidden.error is not None
    assert unknown.error is not None
    assert (hidden.code, hidden.error.data) == (unknown.code, unknown.error.data)
    assert done.text == "4"


async def test_a_caller_that_loses_sight_of_a_tool_cannot_go_on_with_its_call() -> None:
    allowed = True
    server = Server("shop")

    @server.tool(visible=lambda _: allowed)
    async def refund(ctx: Context) -> str:
        return f"{(await ctx.elicit('How much?', Size)).gb}"

    async with Rounds(server) as rounds:
        waiting = await rounds.begin("refund")
        allowed = False
        assert (await rounds.answer(waiting, {"size": {"gb": 4}})).text == "Unknown tool: refund"
        allowed = True
        assert (await rounds.answer(waiting, {"size": {"gb": 4}})).text == "4"


async def test_a_function_that_fails_hides_the_tool(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("shop")

    @server.tool(visible=lambda principal: principal.nobody)  # type: ignore[attr-defined]
    async def refund() -> str:
        return "never"

    @server.tool(visible=lambda principal: "yes")  # type: ignore[return-value]
    async def other() -> str:
        return "never"

    with caplog.at_level(logging.ERROR):
        async with Rounds(server) as rounds:
            assert await names(rounds, ADA) == []
            assert (await rounds.call("refund")).text == "Unknown tool: refund"
            assert (await rounds.call("other")).text == "Unknown tool: other"
    assert "visible= of tool 'refund' failed" in caplog.text


async def test_a_tool_for_old_clients_and_its_limits_are_hidden_with_it() -> None:
    server = make()

    @server.tool(visible=for_ada, rate="1/day")
    async def pay() -> str:
        return "modern"

    @pay.legacy  # type: ignore[attr-defined]
    async def pay_old() -> str:
        return "legacy"

    async with Rounds(server, era="legacy") as rounds:
        assert (await rounds.call("pay", principal=BOB)).text == "Unknown tool: pay"
        assert (await rounds.call("pay", principal=ADA)).text == "legacy"
        assert "1 times a day" in (await rounds.call("pay", principal=ADA)).text


def library() -> Server:
    server = Server("library", cache=CachePolicy(60, "public"))

    @server.prompt
    async def summarize() -> str:
        return "for all"

    @server.prompt(visible=for_ada)
    async def audit(year: str) -> str:
        return f"{year} for ada"

    @server.resource("book://plan")
    async def plan() -> str:
        return "open"

    @server.resource("book://secret", visible=for_ada)
    async def secret() -> str:
        return "closed"

    @server.resource("book://{shelf}/{name}", visible=for_ada)
    async def staff(shelf: str, name: str) -> str:
        return f"staff {shelf} {name}"

    @server.resource("book://{shelf}/{name}.txt")
    async def public(shelf: str, name: str) -> str:
        return f"public {shelf} {name}"

    @server.completion("audit", "year")
    async def years(text: str) -> list[str]:
        return ["2025"]

    @server.completion("book://{shelf}/{name}", "shelf")
    async def shelves(text: str) -> list[str]:
        return ["A"]

    return server


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_resources_and_templates_are_listed_to_those_who_may_use_them(
    era: Era,
) -> None:
    async with Rounds(library(), era=era) as rounds:
        for principal, expected in (
            (ADA, ["summarize", "audit", "plan", "secret", "staff", "public"]),
            (BOB, ["summarize", "plan", "public"]),
            (ADA, ["summarize", "audit", "plan", "secret", "staff", "public"]),
        ):
            found: list[str] = []
            for method, member in (
                ("prompts/list", "prompts"),
                ("resources/list", "resources"),
                ("resources/templates/list", "resourceTemplates"),
            ):
                page: Any = (await rounds.send(method, {}, principal=principal)).result
                found += [entry["name"] for entry in page[member]]
            assert found == expected


@pytest.mark.parametrize("era", ERAS)
async def test_a_hidden_prompt_is_refused_like_one_that_does_not_exist(era: Era) -> None:
    params = {"name": "audit", "arguments": {"year": "2025"}}
    async with Rounds(library(), era=era) as rounds:
        hidden = await rounds.send("prompts/get", params, principal=BOB)
        unknown = await rounds.send("prompts/get", {"name": "adult"}, principal=BOB)
        seen: Any = (await rounds.send("prompts/get", params, principal=ADA)).result
    assert (hidden.text, unknown.text) == ("Unknown prompt: audit", "Unknown prompt: adult")
    assert hidden.error is not None
    assert unknown.error is not None
    assert (hidden.code, hidden.error.data) == (unknown.code, unknown.error.data)
    assert seen["messages"][0]["content"]["text"] == "2025 for ada"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("uri", "ada", "bob"),
    [
        ("book://secret", "closed", None),
        ("book://A/list", "staff A list", None),
        ("book://A/list.txt", "staff A list.txt", "public A list"),
        ("book://plan", "open", "open"),
    ],
)
async def test_a_hidden_resource_is_refused_like_one_that_does_not_exist(
    era: Era, uri: str, ada: str, bob: str | None
) -> None:
    async with Rounds(library(), era=era) as rounds:
        seen: Any = (await rounds.send("resources/read", {"uri": uri}, principal=ADA)).result
        other = await rounds.send("resources/read", {"uri": uri}, principal=BOB)
        unknown = await rounds.send("resources/read", {"uri": "book://none"}, principal=BOB)
    assert seen["contents"][0]["text"] == ada
    if bob is None:
        assert other.error is not None
        assert unknown.error is not None
        assert (other.code, other.text) == (unknown.code, unknown.text)
        assert other.error.data == {"uri": uri}
    else:
        read: Any = other.result
        assert read["contents"][0]["text"] == bob


@pytest.mark.parametrize(
    ("ref", "argument"),
    [
        ({"type": "ref/prompt", "name": "audit"}, "year"),
        ({"type": "ref/resource", "uri": "book://{shelf}/{name}"}, "shelf"),
    ],
)
async def test_the_arguments_of_what_is_hidden_are_not_completed(
    ref: dict[str, str], argument: str
) -> None:
    params = {"ref": ref, "argument": {"name": argument, "value": ""}}
    async with Rounds(library()) as rounds:
        seen: Any = (await rounds.send("completion/complete", params, principal=ADA)).result
        other = await rounds.send("completion/complete", params, principal=BOB)
    assert seen["completion"]["total"] == 1
    assert other.text == "Unknown reference to complete"


async def test_a_change_of_a_hidden_resource_is_announced_to_those_who_see_it() -> None:
    uris = ["book://secret", "book://A/list", "book://plan"]
    server, heard = library(), dict[str, list[Any]]()
    for principal in (ADA, BOB):
        listener = await server.dispatcher.subscriptions.subscribe(
            Request(
                method="subscriptions/listen",
                capabilities={},
                principal=principal,
                params={"notifications": {"resourceSubscriptions": uris}},
            )
        )
        for uri in uris:
            server.resource_updated(uri)
        heard[principal.subject or ""] = [p["uri"] for _, p in await listener.news()]
    assert heard == {"ada": uris, "bob": ["book://plan"]}


async def test_what_depends_on_the_caller_is_not_shared_by_caches() -> None:
    async with Rounds(library()) as rounds:
        scopes: list[str] = []
        for method, params in (
            ("prompts/list", {}),
            ("resources/list", {}),
            ("resources/read", {"uri": "book://secret"}),
            ("resources/read", {"uri": "book://plan"}),
        ):
            result: Any = (await rounds.send(method, params, principal=ADA)).result
            scopes.append(result["cacheScope"])
    async with Rounds(make(cache=CachePolicy(60, "public"))) as rounds:
        tools: Any = (await rounds.send("tools/list", {}, principal=ADA)).result
    assert scopes == ["private", "private", "private", "public"]
    assert tools["cacheScope"] == "private"


def test_what_cannot_say_who_sees_it_is_refused_at_registration() -> None:
    async def later(_: Principal) -> bool:
        return True

    for wrong in (later, True, "ada", bool):
        with pytest.raises(ConfigError, match="visible= takes a plain function"):
            Server("shop").tool(visible=wrong)  # type: ignore[call-overload]


def test_headers_of_a_hidden_tool_would_betray_it() -> None:
    schema = {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    }

    async def deploy(region: str) -> str:
        return region

    with pytest.raises(ConfigError, match="does not go together with x-mcp-header"):
        Server("shop").tool(visible=for_ada, input_schema=schema)(deploy)
