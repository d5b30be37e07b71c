"""`Server.from_openapi` with FastMCP's importer, before an API that is a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon import ConfigError, Server
from tests.child_processes import named_in
from tests.client.programs import ENVIRONMENT, PEERS

pytestmark = pytest.mark.timeout(120)

HERE = Path(__file__).resolve().parent / "peers"
SOURCE = HERE.parents[2] / "src"
DOCUMENT = HERE / "orders_api.yaml"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of every call, and what the API was asked."""
    folder = tmp_path_factory.mktemp("openapi")
    events = folder / "events"
    paths = os.pathsep.join(map(str, [SOURCE, SOURCE.parent, named_in(folder / "packages")]))
    api = subprocess.Popen(
        [sys.executable, str(HERE / "orders_api.py")],
        env={**os.environ, "EVENTS": str(events)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with api:
        assert api.stdout is not None
        try:
            url = f"http://127.0.0.1:{api.stdout.readline().strip()}/v1"
            done = subprocess.run(
                [PEERS / "fastmcp" / "bin" / "python", HERE / "from_openapi.py", DOCUMENT, url],
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": paths},
                capture_output=True,
                text=True,
                check=False,
                timeout=100,
            )
        finally:
            api.kill()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "requests": [json.loads(line) for line in events.read_text().splitlines()]}


def test_operations_are_tools_with_schemas_of_their_parameters(report: dict[str, Any]) -> None:
    tools = report["first"]["tools"]
    assert list(tools) == ["find_orders", "place_order", "get_order", "Delete_an_order"]
    assert tools["place_order"]["required"] == ["item", "amount"]
    assert tools["place_order"]["properties"]["item"] == {"type": "string", "maxLength": 40}
    assert list(tools["find_orders"]["properties"]) == ["item", "X-Trace"]
    assert report["first"]["server"] == ["Orders", "4.2"]


def test_parameters_reach_the_api_in_their_places(report: dict[str, Any]) -> None:
    first = report["first"]
    found, placed, deleted = report["requests"][:3]
    assert (found["request"], found["query"]) == ("GET /v1/orders", "item=tea&item=a+b%26c")
    assert first["found"]["value"] == {"result": [{"id": "7", "item": "tea", "amount": 2}]}
    assert placed["request"] == "POST /v1/orders"
    assert json.loads(placed["body"]) == {"item": "cup", "amount": 3}
    assert deleted["request"] == "DELETE /v1/orders/7"
    assert not first["deleted"]["error"]


def test_an_answer_that_the_document_does_not_describe_is_given_all_the_same(
    report: dict[str, Any],
) -> None:
    placed = report["first"]["placed"]
    assert not placed["error"]
    assert placed["value"]["result"]["surprise"] == "not in the document"


def test_arguments_that_do_not_fit_are_not_sent(report: dict[str, Any]) -> None:
    first = report["first"]
    assert first["unfit"]["error"]
    assert "amount" in first["unfit"]["text"]
    assert first["got"]["error"]
    assert "dot segments" in first["got"]["text"]
    sent = [one["request"] for one in report["requests"]]
    assert sent.count("POST /v1/orders") == 1
    assert not [request for request in sent if request.startswith("GET /v1/orders/7/")]


def test_an_approval_by_method_stands_in_front(report: dict[str, Any]) -> None:
    first = report["first"]
    assert first["kept"] == {"error": True, "text": "Declined. Nothing was done.", "value": None}
    assert len(first["asked"]) == 2
    assert all(text.startswith("Allow this call of Delete_an_order?") for text in first["asked"])
    sent = [one["request"] for one in report["requests"]]
    assert sent.count("DELETE /v1/orders/7") == 1


def test_errors_of_the_api_are_errors_of_the_tool(report: dict[str, Any]) -> None:
    assert "404" in report["first"]["again"]["text"]
    assert "no order 7" in report["first"]["again"]["text"]
    second = report["second"]
    for name, text in (("once", "401"), ("twice", "401"), ("slow", "timed out"), ("gone", "error")):
        assert second[name]["error"], name
        assert text in second[name]["text"]
    sent = [one["request"] for one in report["requests"]]
    assert sent.count("POST /v1/slow") == 1


def test_only_what_was_configured_is_sent_as_credentials(report: dict[str, Any]) -> None:
    usual = {"accept", "accept-encoding", "connection", "host", "user-agent"}
    body = {"content-length", "content-type"}
    assert {name for one in report["requests"] for name in one["headers"]} - usual - body == {
        "x-api-key"
    }
    assert not report["second"]["own"]["error"]


def test_what_is_not_allowed_or_denied_is_no_tool(report: dict[str, Any]) -> None:
    assert report["second"]["tools"] == ["be_slow", "find_orders", "get_order"]
    assert "be_slow" not in report["first"]["tools"]


def test_settings_that_do_not_fit_are_refused_when_the_server_is_made(
    report: dict[str, Any],
) -> None:
    for name, text in {
        "typo": "method and path like 'DELET *'",
        "name": "tool like 'drop_*'",
        "role": "needs Server(console=",
        "nowhere": "give url=",
        "old": "only version 3",
        "broken": "cannot read the OpenAPI document",
        "file": "cannot be read",
        "both": "leave out the others",
    }.items():
        assert text in report["refused"][name], name


def test_without_fastmcp_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fastmcp", None)
    with pytest.raises(ConfigError, match=r"pip install 'antiphon\[openapi\]'"):
        Server.from_openapi({"openapi": "3.1.0", "info": {"title": "x", "version": "1"}})
