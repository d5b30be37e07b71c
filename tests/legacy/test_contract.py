"""The names of the official SDK that the legacy adapter leans on.

Run this against a new minor of `mcp` before the pin is moved. What the names must *do* (two asks
out at once, resuming, cancelling, the idle end, equal ids in two sessions) is held by the other
tests of this folder, which run through them.
"""

import importlib.metadata
import inspect
from typing import Any

import mcp_types
import pytest
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.models import InitializationOptions
from mcp.server.runner import serve_connection, serve_loop
from mcp.server.session import ServerSession
from mcp.server.streamable_http import EventStore, StreamableHTTPServerTransport
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from sse_starlette.sse import AppStatus

from antiphon.protocol.methods import LEGACY_METHODS
from antiphon.protocol.request import LEGACY


def test_the_sdk_is_of_the_minor_that_was_tried() -> None:
    assert importlib.metadata.version("mcp").startswith("2.3.")


def test_the_sdk_shakes_hands_in_the_revisions_that_we_serve() -> None:
    assert set(HANDSHAKE_PROTOCOL_VERSIONS) == set(LEGACY)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (
            StreamableHTTPServerTransport,
            {"mcp_session_id", "event_store", "retry_interval", "idle_timeout"},
        ),
        (
            serve_loop,
            {"server", "read_stream", "write_stream", "lifespan_state", "session_id"},
        ),
        (serve_loop, {"init_options"}),
        (serve_connection, {"connection", "lifespan_state", "init_options"}),
        (JSONRPCDispatcher, {"inline_methods", "transport_builder"}),
        (TransportContext, {"kind", "can_send_request"}),
        (Connection.from_envelope, {"protocol_version", "client_info", "client_capabilities"}),
        (Server.add_request_handler, {"method", "params_type", "handler"}),
        (Server.add_notification_handler, {"method", "params_type", "handler"}),
        (
            ServerSession.send_request,
            {"request", "result_type", "request_read_timeout_seconds", "metadata"},
        ),
        (ServerSession.send_notification, {"notification", "related_request_id"}),
        (EventStore.store_event, {"stream_id", "message"}),
        (EventStore.replay_events_after, {"last_event_id", "send_callback"}),
        (ServerMessageMetadata, {"related_request_id"}),
        (SessionMessage, {"message"}),
        (MCPError, {"code", "message", "data"}),
        (AppStatus.disable_automatic_graceful_drain, set()),
        (AppStatus.enable_automatic_graceful_drain_mode, set()),
    ],
)
def test_a_function_of_the_sdk_takes_what_we_give_it(function: Any, parameters: set[str]) -> None:
    assert parameters <= inspect.signature(function).parameters.keys()


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (
            StreamableHTTPServerTransport("x", idle_timeout=1.0),
            {
                "connect", "handle_request", "terminate", "is_terminated", "idle_scope",
                "close_standalone_sse_stream",
            },
        ),
        (ServerSession, {"client_capabilities", "client_params", "can_send_request"}),
        (Server("x"), {"middleware"}),
    ],
)  # fmt: skip
def test_an_object_of_the_sdk_has_what_we_use(owner: Any, names: set[str]) -> None:
    assert {name for name in names if not hasattr(owner, name)} == set()


def test_a_request_brings_what_we_read_of_it() -> None:
    fields = ServerRequestContext.__dataclass_fields__
    used = {"session", "lifespan_context", "method", "params", "request_id", "protocol_version"}
    assert used | {"close_sse_stream"} <= fields.keys()


def test_the_codes_of_the_sdk_are_the_ones_we_know() -> None:
    assert mcp_types.REQUEST_TIMEOUT == -32001
    assert mcp_types.CONNECTION_CLOSED == -32000


def test_every_method_that_we_serve_is_one_the_sdk_checks_the_params_of() -> None:
    known = {method for method, _ in methods.CLIENT_REQUESTS}
    assert set(LEGACY_METHODS) <= known


def test_options_of_the_handshake_take_our_capabilities() -> None:
    declared = {"logging": {}, "tools": {"listChanged": True}}
    capabilities = mcp_types.ServerCapabilities.model_validate(declared)
    options = InitializationOptions(server_name="x", server_version="1", capabilities=capabilities)
    told = options.capabilities.model_dump(by_alias=True, exclude_none=True)
    assert told == declared
