"""Mirrored headers against the body, and annotations at registration."""

import base64
from typing import Any

import pytest

from antiphon.errors import HEADER_MISMATCH, ConfigError, InvalidRequest
from antiphon.protocol.headers import (
    HeaderParam,
    check_mirrors,
    check_params,
    compile_header_params,
    decode_value,
)

VERSION = b"2026-07-28"
STANDARD = {b"mcp-protocol-version": VERSION, b"mcp-method": b"tools/call", b"mcp-name": b"book"}
NONE: frozenset[bytes] = frozenset()


def mirrors(name: object = "book", **changed: bytes | None) -> None:
    headers = {
        **STANDARD,
        **{name.replace("_", "-").encode(): value for name, value in changed.items()},
    }
    given = {name: value for name, value in headers.items() if value is not None}
    check_mirrors(given, NONE, VERSION.decode(), "tools/call", name)


def refused(message: str = "") -> Any:
    return pytest.raises(InvalidRequest, match=message)


def test_matching_headers_pass_with_blanks_around_them() -> None:
    mirrors()
    mirrors(mcp_name=b" \tbook ", mcp_method=b" tools/call", mcp_protocol_version=VERSION + b"\t")


@pytest.mark.parametrize("header", ["mcp_protocol_version", "mcp_method", "mcp_name"])
@pytest.mark.parametrize("value", [None, b"", b"other", b"TOOLS/CALL", b"Book"])
def test_a_missing_or_other_value_is_a_mismatch(header: str, value: bytes | None) -> None:
    with refused(header.replace("_", "-").title().replace("Mcp-P", "MCP-P")) as caught:
        mirrors(**{header: value})
    assert caught.value.code == HEADER_MISMATCH


def test_a_doubled_mirror_is_refused_even_if_both_agree() -> None:
    with refused("twice"):
        check_mirrors(STANDARD, frozenset({b"mcp-name"}), VERSION.decode(), "tools/call", "book")


@pytest.mark.parametrize("name", [None, 5, ["book"]])
def test_a_name_that_is_no_string_is_left_to_the_check_of_params(name: object) -> None:
    mirrors(name, mcp_name=None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"plain", "plain"),
        (b"", ""),
        (b"=?base64?SGVsbG8=?=", "Hello"),
        (b"=?base64?w6k=?=", "é"),
        (b"=?base64??=", ""),
        (b"=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        (b"SGVsbG8=?=", "SGVsbG8=?="),
        (b"=?base64?=", "=?base64?="),
        (b"=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
    ],
)
def test_a_value_is_literal_or_wholly_wrapped(value: bytes, text: str) -> None:
    assert decode_value(value, "Mcp-Name") == text


@pytest.mark.parametrize(
    "value",
    [
        b"=?base64?SGVsbG8?=",
        b"=?base64?SGVs bG8=?=",
        b"=?base64?SGVsbG8=A?=",
        b"=?base64?SGV-_G8=?=",
        b"=?base64?/w==?=",
        b"caf\xc3\xa9",
        b"a\x00b",
        b"a\tb",
        b"a\x7fb",
    ],
)
def test_a_malformed_value_is_a_mismatch(value: bytes) -> None:
    with refused("Mcp-Name") as caught:
        decode_value(value, "Mcp-Name")
    assert caught.value.code == HEADER_MISMATCH


@pytest.mark.requirement("HDR-04")
@pytest.mark.parametrize("text", ["a", "", " a", "a\n", "é", "=?base64?x?=", "a b", "\t", "=?="])
def test_every_text_survives_its_header_in_base64(text: str) -> None:
    encoded = b"=?base64?" + base64.b64encode(text.encode()) + b"?="
    assert decode_value(encoded, "Mcp-Name") == text


# --- arguments ---------------------------------------------------------------------------------

PARAMS = {
    "region": HeaderParam(("region",), "string"),
    "size": HeaderParam(("size",), "integer"),
    "dry": HeaderParam(("deep", "dry"), "boolean"),
}


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        (None, {}),
        ({}, {}),
        ({"region": None, "deep": None}, {}),
        ({"region": "eu"}, {"region": b"eu"}),
        ({"region": ""}, {"region": b""}),
        ({"region": "é"}, {"region": b"=?base64?w6k=?="}),
        ({"size": 42}, {"size": b"42"}),
        ({"size": 42}, {"size": b"42.0"}),
        ({"size": 42.0}, {"size": b"42"}),
        ({"size": -1}, {"size": b"-1"}),
        ({"deep": {"dry": False}}, {"dry": b"false"}),
        ({"deep": []}, {}),
        ({"region": {"no": "text"}}, {}),
        ({"region": "eu", "x": 1}, {"region": b"eu", "unknown": b"x"}),
    ],
)
def test_arguments_and_their_headers_agree(arguments: Any, headers: dict[str, bytes]) -> None:
    check_params(
        {f"mcp-param-{k}".encode(): v for k, v in headers.items()}, NONE, PARAMS, arguments
    )


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"region": "eu"}, {}),
        ({"region": "eu"}, {"region": b"us"}),
        ({"region": "eu"}, {"region": b"=?base64?ZXU?="}),
        ({"region": None}, {"region": b"eu"}),
        (None, {"region": b"eu"}),
        ({"size": 42}, {"size": b"43"}),
        ({"size": 42}, {"size": b"42.5"}),
        ({"size": 42}, {"size": b"+42"}),
        ({"size": 42}, {"size": b"4_2"}),
        ({"size": 2**53}, {"size": b"9007199254740992"}),
        ({"size": True}, {"size": b"1"}),
        ({"deep": {"dry": True}}, {"dry": b"True"}),
        ({"region": {"no": "text"}}, {"region": b"x"}),
    ],
)
def test_arguments_and_headers_that_differ_are_a_mismatch(
    arguments: Any, headers: dict[str, bytes]
) -> None:
    with refused("Mcp-Param-") as caught:
        check_params(
            {f"mcp-param-{k}".encode(): v for k, v in headers.items()}, NONE, PARAMS, arguments
        )
    assert caught.value.code == HEADER_MISMATCH


def test_a_doubled_param_header_is_refused() -> None:
    name = b"mcp-param-region"
    with refused("twice"):
        check_params({name: b"eu"}, frozenset({name}), PARAMS, {"region": "eu"})


# --- registration --------------------------------------------------------------------------------


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_annotations_are_found_at_any_depth_of_properties() -> None:
    inner = {"type": "boolean", "x-mcp-header": "Dry-Run"}
    found = compile_header_params(
        schema(
            region={"type": "string", "x-mcp-header": "Region"},
            deep=schema(dry=inner),
            plain={"type": "string", "default": {"x-mcp-header": "only data"}},
        )
    )
    assert found == {
        "region": HeaderParam(("region",), "string"),
        "dry-run": HeaderParam(("deep", "dry"), "boolean"),
    }
    named_so = schema(**{"x-mcp-header": {"type": "string"}})
    assert compile_header_params(named_so) == {}


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        (schema(a={"type": "string", "x-mcp-header": ""}), "'a'"),
        (schema(a={"type": "string", "x-mcp-header": "a b"}), "'a'"),
        (schema(a={"type": "string", "x-mcp-header": "a:b"}), "'a'"),
        (schema(a={"type": "string", "x-mcp-header": "é"}), "'a'"),
        (schema(a={"type": "string", "x-mcp-header": "a\r"}), "'a'"),
        (schema(a={"type": "string", "x-mcp-header": 5}), "'a'"),
        (schema(a={"type": "number", "x-mcp-header": "A"}), "'a'"),
        (schema(a={"type": ["string", "null"], "x-mcp-header": "A"}), "'a'"),
        (schema(a={"$ref": "#/$defs/A", "x-mcp-header": "A"}), "'a'"),
        (schema(a=schema(b={"type": "object", "x-mcp-header": "A"})), "'a.b'"),
        ({**schema(), "x-mcp-header": "A"}, "root"),
        (schema(a={"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}), "items"),
        (schema(a={"anyOf": [{"type": "string", "x-mcp-header": "A"}]}), "anyOf"),
        ({**schema(), "$defs": {"D": schema(x={"type": "string", "x-mcp-header": "A"})}}, "defs"),
        (
            schema(
                a={"type": "string", "x-mcp-header": "Same"},
                b={"type": "string", "x-mcp-header": "same"},
            ),
            "'a' and on property 'b'",
        ),
    ],
)
def test_a_bad_annotation_fails_at_registration_and_is_named(
    bad: dict[str, Any], names: str
) -> None:
    with pytest.raises(ConfigError, match="x-mcp-header") as caught:
        compile_header_params(bad)
    assert names in str(caught.value)
