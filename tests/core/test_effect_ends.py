"""What an exception of an effect says: nothing happened, refused, unknown, or failed."""

import asyncio
import concurrent.futures
import http.client
import socket
import ssl
import subprocess
import urllib.error
from email.message import Message
from typing import Any

import httpx2
import pytest

from antiphon import ConfigError, Context, NotDone, OutcomeUnknown, Server, ToolError
from antiphon.protocol.effect_ends import EffectEnd, end_of, unknown_types
from antiphon.testing import Rounds

NOT_DONE, REFUSED = EffectEnd.NOT_DONE, EffectEnd.REFUSED
UNKNOWN, FAILED = EffectEnd.UNKNOWN, EffectEnd.FAILED


def of(library: str, *names: str, **attributes: Any) -> Exception:
    """Make an exception of a library that is not installed, with its bases, the nearest last."""
    kind: Any = Exception
    for name in names:
        kind = type(name, (kind,), {"__module__": library})
    error: Exception = kind("it went wrong")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


class Reply:
    def __init__(self, status: int) -> None:
        self.status_code = status


class Code:
    def __init__(self, name: str) -> None:
        self.name = name


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


REQUEST = httpx2.Request("POST", "https://bank.example/payments")


def answered(status: int) -> httpx2.HTTPStatusError:
    return httpx2.HTTPStatusError(
        "no", request=REQUEST, response=httpx2.Response(status, request=REQUEST)
    )


CASES: list[tuple[BaseException, EffectEnd]] = [
    (NotDone("no"), NOT_DONE),
    (ToolError("sold out"), REFUSED),
    (OutcomeUnknown("?"), UNKNOWN),
    # Built in.
    (ConnectionRefusedError(), NOT_DONE),
    (socket.gaierror(), NOT_DONE),
    (ssl.SSLCertVerificationError(), NOT_DONE),
    (TimeoutError(), UNKNOWN),
    (ConnectionResetError(), UNKNOWN),
    (BrokenPipeError(), UNKNOWN),
    (EOFError(), UNKNOWN),
    (ssl.SSLEOFError(), UNKNOWN),
    (asyncio.CancelledError(), UNKNOWN),
    (asyncio.IncompleteReadError(b"", 1), UNKNOWN),
    (concurrent.futures.CancelledError(), UNKNOWN),
    (http.client.RemoteDisconnected("gone"), UNKNOWN),
    (http.client.IncompleteRead(b""), UNKNOWN),
    (subprocess.TimeoutExpired("pay", 5), UNKNOWN),
    (urllib.error.URLError(ConnectionRefusedError()), NOT_DONE),
    (urllib.error.URLError(TimeoutError()), UNKNOWN),
    (urllib.error.HTTPError("u", 503, "no", Message(), None), UNKNOWN),
    (urllib.error.HTTPError("u", 402, "no", Message(), None), FAILED),
    (KeyError("receipt"), FAILED),
    (ValueError("no"), FAILED),
    (OSError("disk"), FAILED),
    # httpx2 itself.
    (httpx2.ConnectError("no"), NOT_DONE),
    (httpx2.ConnectTimeout("no"), NOT_DONE),
    (httpx2.PoolTimeout("no"), NOT_DONE),
    (httpx2.ReadTimeout("no"), UNKNOWN),
    (httpx2.WriteTimeout("no"), UNKNOWN),
    (httpx2.ReadError("no"), UNKNOWN),
    (httpx2.RemoteProtocolError("no"), UNKNOWN),
    (httpx2.DecodingError("no"), UNKNOWN),
    (httpx2.TooManyRedirects("no"), UNKNOWN),
    (answered(422), FAILED),
    (answered(409), UNKNOWN),
    (answered(408), UNKNOWN),
    (answered(502), UNKNOWN),
    # Others, by module and name.
    (of("httpx._exceptions", "HTTPError", "TransportError", "ReadTimeout"), UNKNOWN),
    (of("httpx._exceptions", "HTTPError", "TransportError", "ConnectTimeout"), NOT_DONE),
    (of("requests.exceptions", "RequestException", "ReadTimeout"), UNKNOWN),
    (of("requests.exceptions", "RequestException", "ConnectTimeout"), NOT_DONE),
    (of("requests.exceptions", "RequestException", "ChunkedEncodingError"), UNKNOWN),
    (of("requests.exceptions", "RequestException", "HTTPError", response=Reply(500)), UNKNOWN),
    (of("requests.exceptions", "RequestException", "HTTPError", response=Reply(404)), FAILED),
    (of("urllib3.exceptions", "HTTPError", "ProtocolError"), UNKNOWN),
    (of("urllib3.exceptions", "HTTPError", "NewConnectionError"), NOT_DONE),
    (of("aiohttp.client_exceptions", "ClientError", "ServerDisconnectedError"), UNKNOWN),
    (of("aiohttp.client_exceptions", "ClientError", "ClientConnectorError"), NOT_DONE),
    (of("aiohttp.client_exceptions", "ClientError", "ClientResponseError", status=503), UNKNOWN),
    (of("aiohttp.client_exceptions", "ClientError", "ClientResponseError", status=400), FAILED),
    (of("botocore.exceptions", "BotoCoreError", "HTTPClientError", "ReadTimeoutError"), UNKNOWN),
    (of("botocore.exceptions", "BotoCoreError", "EndpointConnectionError"), NOT_DONE),
    (
        of(
            "botocore.exceptions",
            "ClientError",
            response={"ResponseMetadata": {"HTTPStatusCode": 500}},
        ),
        UNKNOWN,
    ),
    (of("grpc", "RpcError", code=lambda: Code("DEADLINE_EXCEEDED")), UNKNOWN),
    (of("grpc", "RpcError", code=lambda: Code("UNAVAILABLE")), UNKNOWN),
    (of("grpc", "RpcError", code=lambda: Code("INVALID_ARGUMENT")), FAILED),
    (of("grpc", "RpcError"), UNKNOWN),
    (of("stripe", "StripeError", "APIConnectionError"), UNKNOWN),
    (of("bank_sdk", "GatewayTimeout"), UNKNOWN),
    # Wrappers and groups.
    (caused(RuntimeError("payment failed"), TimeoutError()), UNKNOWN),
    (caused(RuntimeError("payment failed"), ConnectionRefusedError()), NOT_DONE),
    (caused(ToolError("payment failed"), TimeoutError()), UNKNOWN),
    (caused(ToolError("no stock"), KeyError("stock")), REFUSED),
    (ExceptionGroup("both", [ValueError(), TimeoutError()]), UNKNOWN),
    (ExceptionGroup("both", [ToolError("no"), ConnectionRefusedError()]), REFUSED),
]


@pytest.mark.parametrize(("error", "end"), CASES, ids=lambda one: type(one).__name__)
def test_an_exception_says_how_an_effect_ended(error: BaseException, end: EffectEnd) -> None:
    assert end_of(error) is end


def test_an_exception_raised_while_another_is_handled_counts_as_that_one_too() -> None:
    error = ToolError("the bank is slow")
    error.__context__, error.__suppress_context__ = TimeoutError(), True
    assert end_of(error) is UNKNOWN


def test_exceptions_of_the_author_are_unknown() -> None:
    class GatewayError(Exception):
        pass

    assert end_of(GatewayError()) is FAILED
    assert end_of(GatewayError(), unknown_types(GatewayError)) is UNKNOWN
    assert end_of(NotDone("no"), unknown_types([Exception])) is NOT_DONE


@pytest.mark.parametrize("wrong", ["TimeoutError", 5, [int], (ValueError, None), KeyboardInterrupt])
def test_what_is_no_exception_class_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="exception classes"):
        unknown_types(wrong)
    with pytest.raises(ConfigError, match="exception classes"):
        Server("till", unknown_after=wrong)


async def test_a_server_names_exceptions_for_all_its_effects() -> None:
    class GatewayError(Exception):
        pass

    def make(**world: Any) -> Server:
        server = Server("till", unknown_after=[GatewayError], **world)

        @server.tool
        async def pay(ctx: Context) -> str:
            return await ctx.once("pay", fail)

        def fail() -> str:
            raise GatewayError

        return server

    async with Rounds(make) as world:
        assert "its end is not known" in (await world.begin("pay")).text
