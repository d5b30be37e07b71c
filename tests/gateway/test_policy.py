"""What rules let pass: by the kind of a request, by normal forms, closed where nobody said so."""

import asyncio
import logging
import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import mcp_types as types
import pytest
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.mcpserver import MCPServer

from antiphon import Accept, Client, ConfigError, RemoteError, Server, StartError
from antiphon.apps.gateway.policy import Policy
from antiphon.apps.gateway.uris import NoNormalForm, normal_pattern, normal_uri

OBJECT = {"type": "object"}


class Files:
    """A server that opens whatever path it reads in a URI."""

    def __init__(self, *templates: str, listed: str = "file:///srv/public/index.html") -> None:
        self.opened: list[str] = []
        self.sent: list[str] = []
        self._templates, self._listed = templates, listed
        self.server = SdkServer(
            "files",
            on_read_resource=self._read,
            on_list_resources=self._list,
            on_list_resource_templates=self._list_templates,
        )

    async def _read(self, _: Any, params: Any) -> types.ReadResourceResult:
        path = posixpath.normpath(unquote(urlsplit(str(params.uri)).path))
        self.sent.append(str(params.uri))
        self.opened.append(path)
        text = types.TextResourceContents(uri=params.uri, text=path)
        return types.ReadResourceResult(contents=[text])

    async def _list(self, *_: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(uri=self._listed, name="index")])

    async def _list_templates(self, *_: Any) -> types.ListResourceTemplatesResult:
        found = [types.ResourceTemplate(uri_template=one, name="x") for one in self._templates]
        return types.ListResourceTemplatesResult(resource_templates=found)


@asynccontextmanager
async def mounted(inner: Any, **options: Any) -> AsyncIterator[Client]:
    server = Server("house")
    server.mount(inner, **options)
    async with Client(server) as client:
        yield client


SPELLINGS = [
    "file:///etc/passwd",
    "file:/etc/passwd",
    "FILE:///etc/passwd",
    "file://localhost/etc/passwd",
    "file://LOCALHOST/etc/passwd",
    "file://127.0.0.1/etc/passwd",
    "file:///srv/public/../../etc/passwd",
    "file:///srv/public/%2e%2e/%2E./etc/passwd",
    "file:////etc/passwd",
    "file:///etc//passwd",
    "file:///%65tc/passwd",
    "file:///ETC/passwd",
    "file:///srv/public%2f..%2f..%2fetc/passwd",
    "file:///srv/public/..%5c..%5cetc/passwd",
    "file:///etc/./passwd",
    "file:///etc/passwd?x",
    "file:///etc/passwd#x",
    "file://user@localhost/etc/passwd",
    "file:etc/passwd",
    "file:///srv/public/%252e%252e/etc/passwd",
]


@pytest.mark.parametrize("prefix", ["", "files"])
@pytest.mark.parametrize(
    "rules", [{"allow": ["file:///srv/public/*"]}, {"deny": ["file:///etc/*"]}], ids=str
)
async def test_no_spelling_of_a_uri_passes_a_rule_about_the_file(
    rules: dict[str, Any], prefix: str
) -> None:
    files = Files("file:///srv/public/{path}", "file:///{+path}", "file:{+path}")
    async with mounted(files.server, prefix=prefix, **rules) as client:
        for uri in SPELLINGS:
            with pytest.raises(RemoteError, match="not found"):
                await client.read_resource(uri)
        found = await client.read_resource("file:///srv/public/index.html")
        assert found.contents[0].text == "/srv/public/index.html"  # type: ignore[union-attr]
    assert files.opened == ["/srv/public/index.html"]


async def test_a_uri_is_sent_as_it_was_judged() -> None:
    files = Files("file:///srv/{+path}")
    async with mounted(files.server, allow=["file:///srv/*"]) as client:
        await client.read_resource("FILE://localhost/srv/a/../b%2Dc")
    assert files.sent == ["file:///srv/b-c"]


async def test_without_rules_a_uri_is_sent_as_it_came() -> None:
    files = Files()
    async with mounted(files.server) as client:
        await client.read_resource("FILE://localhost/srv/a/../b")
    assert files.sent == ["FILE://localhost/srv/a/../b"]


async def test_a_resource_that_nobody_lists_passes_a_rule_only_where_it_is_allowed() -> None:
    files = Files()
    async with mounted(files.server, deny=["file:///etc/*"], unmatched="warn") as client:
        with pytest.raises(RemoteError, match="not found"):
            await client.read_resource("file:///srv/other")
    async with mounted(files.server, allow=["file:///srv/*"]) as client:
        await client.read_resource("file:///srv/other")
    assert files.opened == ["/srv/other"]


@pytest.mark.parametrize("name", ["Delete_all", "DELETE_ALL", "delete_all"])
@pytest.mark.parametrize("prefix", ["", "shop"])
async def test_the_case_of_a_name_does_not_remove_its_restriction(name: str, prefix: str) -> None:
    done: list[str] = []
    inner = MCPServer("shop")
    inner.add_tool(lambda: done.append("x"), name=name, description="Delete.")
    here = f"{prefix}_{name}" if prefix else name
    async with mounted(inner, prefix=prefix, approve=["delete_*"]) as client:
        step = await client.begin(here)
        assert list(step.asks)
    async with mounted(inner, prefix=prefix, deny=["delete_*"]) as client:
        with pytest.raises(RemoteError, match="Unknown tool"):
            await client.call_tool(here)
    assert done == []


@pytest.mark.parametrize("rules", [{"approve": ["delete_*"]}, {"deny": ["delete_*"]}], ids=str)
@pytest.mark.parametrize(
    "name",
    ["\uff44elete_all", "d\u0435lete_all", "delete\u200b_all", "Delete_ALL", "DELETE_\ufb00"],
)
def test_a_name_that_imitates_another_never_passes_freely(name: str, rules: dict[str, Any]) -> None:
    verdict = Policy.read(**rules).judge("tool", name)
    assert not verdict.passes or verdict.approval is not None


def test_rules_of_one_kind_say_nothing_about_another() -> None:
    policy = Policy.read(deny=["tool:a*", "prompt:b*", "resource:c:*"])
    assert not policy.judge("tool", "ax").passes
    assert policy.judge("prompt", "ax").passes
    assert policy.judge("tool", "bx").passes
    assert not policy.judge("prompt", "bx").passes
    assert not policy.judge_uri("c:d", listed=True)[0].passes
    assert policy.judge_uri("a:d", listed=True)[0].passes


def test_what_is_denied_by_a_star_is_denied_for_every_kind() -> None:
    policy = Policy.read(deny=["*secret*"])
    assert not policy.judge("tool", "read_Secret").passes
    assert not policy.judge("prompt", "secrets").passes
    assert not policy.judge_uri("file:///home/%53ecret/x", listed=True)[0].passes


@pytest.mark.parametrize(
    ("default", "passes", "approval"),
    [("allow", True, False), ("approve", True, True), ("deny", False, False)],
)
def test_the_default_holds_for_tools_that_no_rule_names(
    default: Any, passes: bool, approval: bool
) -> None:
    policy = Policy.read(approve=["pay"], default=default)
    verdict = policy.judge("tool", "look")
    assert (verdict.passes, verdict.approval is not None) == (passes, approval)
    assert policy.judge("tool", "pay").approval is not None
    assert policy.judge("prompt", "greet").passes == (default == "allow")
    assert policy.judge_uri("a://b", listed=True)[0].passes == (default == "allow")


def test_who_allows_something_by_name_allows_nothing_else() -> None:
    policy = Policy.read(allow=["look"], approve=["pay"])
    assert policy.judge("tool", "look").passes
    assert not policy.judge("tool", "Look").passes
    assert not policy.judge("tool", "pay").passes
    assert not policy.judge("prompt", "greet").passes
    assert not policy.judge_uri("a://b", listed=True)[0].passes


# --- rules that name nothing ---------------------------------------------------------------------


def shop(*tools: str) -> MCPServer:
    server = MCPServer("shop")
    for tool in tools:
        server.add_tool(lambda: "done", name=tool, description=tool)
    return server


@pytest.mark.parametrize(
    "rules",
    [{"approve": ["files_delete_*"]}, {"deny": ["delte_*"]}, {"allow": ["prompt:delete_order"]}],
    ids=str,
)
async def test_a_rule_that_names_nothing_stops_the_start_and_shows_what_there_is(
    rules: dict[str, Any],
) -> None:
    server = Server("house")
    server.mount(shop("delete_order"), prefix="shop", **rules)
    with pytest.raises(StartError, match=r"name nothing[\s\S]*shop_delete_order: "):
        async with server.running():
            pass


@pytest.mark.parametrize("pattern", ["delete_*", "shop_delete_*", "SHOP_delete_*"])
async def test_a_rule_names_a_tool_with_or_without_the_prefix(pattern: str) -> None:
    async with mounted(shop("delete_order"), prefix="shop", approve=[pattern]) as client:
        assert list((await client.begin("shop_delete_order")).asks)


async def test_what_rules_make_of_each_entry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "antiphon.gateway")
    rules = {"approve": ["pay"], "deny": ["drop", "gone"], "unmatched": "warn"}
    async with mounted(shop("look", "pay", "drop"), prefix="shop", **rules):
        pass
    assert "tool shop_look: passes" in caplog.text
    assert "tool shop_pay: needs approval by the caller" in caplog.text
    assert "tool shop_drop: denied (by 'drop')" in caplog.text
    assert "the rule 'gone' names nothing" in caplog.text


async def test_a_rule_that_names_nothing_any_more_is_a_warning_with_the_table(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner, server = Server("shop"), Server("house")
    inner.tool(name="delete_order", description="Delete.")(lambda: "x")
    server.mount(inner, approve=["delete_*"])
    changed = asyncio.Event()
    async with Client(server) as client:
        server.dispatcher.changes.subscribe(lambda _: changed.set())
        inner.remove("tool", "delete_order")
        inner.tool(name="erase_order", description="Delete.")(lambda: "x")
        async with asyncio.timeout(10):
            while [one.name for one in await client.list_tools()] != ["erase_order"]:
                await changed.wait()
                changed.clear()
    assert "the rule 'delete_*' names nothing" in caplog.text
    assert "offers now: " in caplog.text
    assert "tool erase_order: passes" in caplog.text


# --- normal forms --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("HTTP://Example.COM:80/a/./b/../%7Ec", "http://example.com/a/~c"),
        ("https://h", "https://h/"),
        ("https://h:8443/x?Q=/../", "https://h:8443/x?Q=/../"),
        ("http://[::1]:80/", "http://[::1]/"),
        ("greeting://Ada", "greeting://Ada"),
        ("urn:isbn:0451450523", "urn:isbn:0451450523"),
        ("file:/a/%c3%a9", "file:///a/%C3%A9"),
        ("file:///../a/", "file:///a/"),
    ],
)
def test_a_uri_has_one_normal_form(uri: str, normal: str) -> None:
    assert normal_uri(uri) == normal
    assert normal_uri(normal) == normal


@pytest.mark.parametrize(
    "uri",
    ["", "a", "a b:c", "x:/one", "http://h./", "http:///x", "http://u@h/", "http://h:x/",
     "a://b//c", "a://b/%2F", "a://b/%zz", "a://b/%", "a://é", "a:..", "file://other/etc"],
)  # fmt: skip
def test_a_uri_that_can_be_read_in_several_ways_has_none(uri: str) -> None:
    with pytest.raises(NoNormalForm):
        normal_uri(uri)


@pytest.mark.parametrize(
    ("pattern", "uri"),
    [
        ("FILE:/etc/*", "file:///etc/x"),
        ("file://localhost/etc/*", "file:///etc/x"),
        ("file:///%65tc/../etc/*", "file:///etc/x"),
        ("http://H:80/*", "http://h/x"),
        ("http://h", "http://h/"),
        ("http://*", "http://h/x"),
        ("file:*", "file:///etc/x"),
        ("note://Ada/*", "note://ada/x"),
        ("file:///caf%C3%A9/*", "file:///cafe%CC%81/x"),
    ],
)
def test_a_pattern_is_written_as_normal_forms_are(pattern: str, uri: str) -> None:
    assert not Policy.read(deny=[pattern]).judge_uri(uri, listed=True)[0].passes


@pytest.mark.parametrize("pattern", ["file:///a//b/*", "x:/one/*", "a://b/%2f*", "file://o/*"])
def test_a_pattern_that_matches_no_normal_form_is_refused(pattern: str) -> None:
    with pytest.raises(NoNormalForm):
        normal_pattern(pattern)
    with pytest.raises(ConfigError, match="matches no URI"):
        Policy.read(deny=[pattern])


async def test_the_approval_of_the_default_is_asked_of_the_caller() -> None:
    server = Server("house")
    server.mount(shop("look"), default="approve")
    async with Client(server, answers=lambda ask: Accept({"approve": True})) as client:
        assert list((await client.begin("look")).asks)
