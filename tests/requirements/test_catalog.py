"""Lists, tools, prompts, resources and errors (CACHE, PAGE, TOOL, PROMPT, RES, ERR, LOG)."""

import base64
from typing import Any

import pytest

from antiphon import CachePolicy, ConfigError, Context, Limits, Server
from tests.requirements.demo_server import LEVEL, Peer, make_server


@pytest.mark.requirement("CACHE-01", "CACHE-06")
@pytest.mark.parametrize(
    "method",
    ["server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"],
)
async def test_lists_and_discovery_carry_the_hints_of_the_server(method: str) -> None:
    peer = Peer(make_server(cache=CachePolicy(ttl=1.5, scope="public")).asgi())
    result = (await peer.ask(method)).result
    assert (result["ttlMs"], result["cacheScope"]) == (1500, "public")


@pytest.mark.requirement("CACHE-01", "CACHE-05")
async def test_hints_are_private_and_stale_unless_the_author_says_otherwise(peer: Peer) -> None:
    result = (await peer.ask("resources/read", uri="house://rooms")).result
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
    called = (await peer.call("echo", {"text": "x"})).result
    assert not {"ttlMs", "cacheScope"} & set(called)


@pytest.mark.requirement("PAGE-01", "CACHE-06", "TOOL-02")
async def test_pages_follow_each_other_to_the_end_in_the_order_of_registration() -> None:
    server = Server("pages", limits=Limits(page=2))
    names = [f"tool_{n}" for n in (3, 1, 2, 5, 4)]
    for name in names:
        server.tool(name=name)(lambda: "x")
    peer, listed, params = Peer(server.asgi()), list[str](), dict[str, Any]()
    while True:
        page = (await peer.ask("tools/list", **params)).result
        listed += [tool["name"] for tool in page["tools"]]
        assert page["cacheScope"] == "private"
        if "nextCursor" not in page:
            break
        params = {"cursor": page["nextCursor"]}
    assert listed == names


@pytest.mark.requirement("PAGE-01", "MRTR-S-31")
@pytest.mark.parametrize("cursor", ["", "2", "AAAA", 5, []])
async def test_a_cursor_that_is_not_ours_is_refused(peer: Peer, cursor: Any) -> None:
    answer = await peer.ask("tools/list", cursor=cursor)
    assert (answer.status, answer.error["code"]) == (400, -32602)


@pytest.mark.requirement("PAGE-01")
async def test_a_cursor_of_one_list_is_not_one_of_another() -> None:
    server = Server("pages", limits=Limits(page=1))
    for name in ("a", "b"):
        server.tool(name=name)(lambda: "x")
        server.prompt(name=name)(lambda: "x")
    peer = Peer(server.asgi())
    cursor = (await peer.ask("tools/list")).result["nextCursor"]
    assert (await peer.ask("prompts/list", cursor=cursor)).error["code"] == -32602


@pytest.mark.requirement("TOOL-01")
async def test_structured_content_fits_its_schema_and_is_repeated_as_text(peer: Peer) -> None:
    tools = {tool["name"]: tool for tool in (await peer.ask("tools/list")).result["tools"]}
    assert all(tool["inputSchema"]["type"] == "object" for tool in tools.values())
    assert tools["report"]["outputSchema"]["required"] == ["total", "names"]
    result = (await peer.call("report", {"names": ["a", "b"]})).result
    assert result["structuredContent"] == {"total": 2, "names": ["a", "b"]}
    assert result["content"] == [{"type": "text", "text": '{"total":2,"names":["a","b"]}'}]


@pytest.mark.requirement("TOOL-01")
def test_an_input_schema_without_an_object_at_its_root_is_refused() -> None:
    with pytest.raises(ConfigError, match="object"):
        Server("roots").tool(name="x", input_schema={"type": "string"})(lambda: "x")


@pytest.mark.requirement("TOOL-02")
@pytest.mark.parametrize("name", [" ", "a b", "ä", "x" * 129, "a/b"])
def test_a_name_outside_the_allowed_form_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        Server("names").tool(name=name)(lambda: "x")


@pytest.mark.requirement("TOOL-02")
async def test_names_are_told_apart_by_case() -> None:
    server = Server("names")
    server.tool(name="Echo")(lambda: "upper")
    server.tool(name="echo")(lambda: "lower")
    answer = await Peer(server.asgi()).call("Echo")
    assert answer.result["content"][0]["text"] == "upper"


@pytest.mark.requirement("TOOL-03", "ERR-06")
@pytest.mark.parametrize("arguments", [None, {}, {"text": 5}, {"text": None}])
async def test_wrong_arguments_are_told_to_the_model_and_the_tool_does_not_run(
    peer: Peer, arguments: Any
) -> None:
    answer = await peer.call("echo", arguments)
    assert (answer.status, answer.result["isError"]) == (200, True)
    assert "text" in answer.result["content"][0]["text"]


@pytest.mark.requirement("ERR-06")
async def test_an_unknown_tool_is_an_error_and_a_failing_one_a_result(peer: Peer) -> None:
    unknown = await peer.call("nobody")
    assert (unknown.status, unknown.error["code"]) == (400, -32602)
    failed = (await peer.call("fail")).result
    assert failed["isError"] is True
    assert failed["content"][0]["text"] == "the kettle is empty"


@pytest.mark.requirement("ERR-06", "TOOL-03", "LOG-03")
async def test_a_crash_tells_nothing_of_its_cause(peer: Peer) -> None:
    answer = await peer.call("crash", meta={LEVEL: "debug", "progressToken": 1})
    assert answer.result["isError"] is True
    assert "cellar" not in answer.body.decode()


@pytest.mark.requirement("PROMPT-01")
@pytest.mark.parametrize(
    ("name", "arguments"), [("nobody", {}), ("greet", {}), ("greet", None), ("greet", {"name": 5})]
)
async def test_an_unknown_prompt_and_missing_or_wrong_arguments_are_refused(
    peer: Peer, name: str, arguments: Any
) -> None:
    answer = await peer.ask("prompts/get", name=name, arguments=arguments)
    assert (answer.status, answer.error["code"]) == (400, -32602)


@pytest.mark.requirement("ERR-07", "ERR-03")
async def test_a_resource_that_is_not_there_is_an_error(peer: Peer) -> None:
    answer = await peer.ask("resources/read", uri="house://attic")
    assert (answer.status, answer.error["code"]) == (400, -32602)


@pytest.mark.requirement("RES-01")
async def test_bytes_are_read_as_base64(peer: Peer) -> None:
    (contents,) = (await peer.ask("resources/read", uri="house://bytes")).result["contents"]
    assert base64.b64decode(contents["blob"]) == b"\x00\xff"


@pytest.mark.requirement("RES-01")
@pytest.mark.parametrize(
    "name", ["..", "%2e%2e", "a%2fb", "a/b", "..%2f..%2fetc", "%5c..", "a%00b", "%252e%252e/x"]
)
async def test_a_uri_that_climbs_is_not_found(name: str) -> None:
    server, read = Server("files"), list[str]()

    @server.resource("files://{name}")
    async def one(name: str) -> str:
        read.append(name)
        return name

    answer = await Peer(server.asgi()).ask("resources/read", uri=f"files://{name}")
    assert (answer.status, answer.error["code"]) == (400, -32602)
    assert read == []


@pytest.mark.requirement("ERR-01", "ERR-02", "ERR-03", "ERR-05")
async def test_every_error_has_a_code_of_this_revision(peer: Peer) -> None:
    answers = [
        await peer.ask("no/such"),
        await peer.call("nobody"),
        await peer.call("book", {"day": "x"}, capabilities={}),
        await peer.call("book", {"day": "x"}, requestState="AAAA"),
        await peer.call("echo", headers={"mcp_name": None}),
        await peer.ask("resources/read", uri="house://attic"),
        await peer.ask("tools/list", cursor="x"),
        await peer.ask("server/discover", meta={"io.modelcontextprotocol/protocolVersion": "1"}),
    ]
    codes = {answer.error["code"] for answer in answers}
    assert codes == {-32601, -32602, -32020, -32021, -32022}


@pytest.mark.requirement("LOG-04", "LOG-02")
async def test_a_log_message_has_level_data_and_logger_and_no_request_id(peer: Peer) -> None:
    server = Server("logs")

    @server.tool
    async def speak(ctx: Context) -> str:
        await ctx.log("hello", level="error", logger="desk")
        return "done"

    answer = await Peer(server.asgi()).call("speak", meta={LEVEL: "error"})
    assert answer.events[0] == {
        "jsonrpc": "2.0",
        "method": "notifications/message",
        "params": {"level": "error", "logger": "desk", "data": "hello"},
    }
