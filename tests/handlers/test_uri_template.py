"""URI templates: what they match, what they give, what leads out of a directory."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.handlers.uri_template import Template


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("shop://orders/{id}", "shop://orders/42", {"id": "42"}),
        ("shop://orders/{id}", "shop://orders/a%20b", {"id": "a b"}),
        ("shop://{a}/x/{b}", "shop://1/x/2", {"a": "1", "b": "2"}),
        ("file:///{+path}", "file:///a/b.txt", {"path": "a/b.txt"}),
        ("x://{a}/{+path}/end", "x://1/2/3/end", {"a": "1", "path": "2/3"}),
        ("x://{+path}/{b}", "x://1/2/3", {"path": "1/2", "b": "3"}),
        ("x://{a}-{b}/{+path}", "x://1-2/3-4/5", {"a": "1", "b": "2", "path": "3-4/5"}),
        ("x://{name}.{kind}", "x://a.tar.gz", {"name": "a.tar", "kind": "gz"}),
        ("x://{name}.txt", "x://v1.2.txt.txt", {"name": "v1.2.txt"}),
        ("log://{y}-{m}-{d}", "log://2026-07-28", {"y": "2026", "m": "07", "d": "28"}),
        ("proxy://{+url}", "proxy://https://example.org/a", {"url": "https://example.org/a"}),
        ("shop://{id}", "shop://urn:1", {"id": "urn:1"}),
    ],
)
def test_a_uri_gives_its_variables(template: str, uri: str, values: dict[str, str]) -> None:
    assert Template(template).match(uri) == values


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("shop://orders/{id}", "shop://orders/"),
        ("shop://orders/{id}", "shop://orders/1/2"),
        ("shop://orders/{id}", "shop://orders/1?x"),
        ("shop://orders/{id}", "shop://orders/1#x"),
        ("shop://orders/{id}", "shop://order"),
        ("x://{a}-{b}", "x://-b"),
        ("x://{a}-{b}", "x://a-"),
        ("x://a{b}a", "x://a"),
        ("x://ab{c}ba", "x://aba"),
    ],
)
def test_what_lacks_a_part_or_has_one_too_many_does_not_match(template: str, uri: str) -> None:
    assert Template(template).match(uri) is None


@pytest.mark.requirement("RES-01")
@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("shop://orders/{id}", "shop://orders/..%2f..%2fetc"),
        ("shop://orders/{id}", "shop://orders/%2e%2e"),
        ("shop://orders/{id}", "shop://orders/%2fetc"),
        ("shop://orders/{id}", "shop://orders/c%3asecret"),
        ("file:///{+path}", "file:///a/../b"),
        ("file:///{+path}", "file:///a%00b"),
        ("file:///{+path}", "file:///a%5c..%5cb"),
        ("docs://{+path}", "docs:///etc/passwd"),
        ("docs://{+path}", "docs://%2fetc/passwd"),
        ("docs://{+path}", "docs://%5c%5chost%5cshare"),
        ("docs://{+path}", "docs://c:/windows"),
        ("docs://{+path}", "docs://C%3a%5cwindows"),
        ("docs://{+path}", "docs://a/..%20/b"),
        ("docs://{+path}", "docs://.../b"),
        ("docs://{+path}", "docs://a/%20../b"),
        ("docs://{name}", "docs://..%20."),
    ],
)
def test_what_would_lead_out_of_a_directory_does_not_match(template: str, uri: str) -> None:
    assert Template(template).match(uri) is None


@pytest.mark.parametrize(
    "template", ["shop://{a}/{a}", "shop://{a", "x://{+a}/{+b}", "x://y", "x://{a}{b}"]
)
def test_a_template_that_cannot_be_matched_without_guessing_is_refused(template: str) -> None:
    with pytest.raises(ConfigError):
        Template(template)


def by_regex(template: str, uri: str) -> dict[str, str] | None:
    """What a template without `{+rest}` means, by a matcher that tries every way."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/?#]+)", re.escape(template))
    found = re.fullmatch(pattern, uri)
    return found and found.groupdict()


@given(
    st.sampled_from(["x:{a}", "x:{a}-{b}", "x:{a}-{b}-{c}", "x:{a}--{b}-", "x:-{a}/{b}-{c}"]),
    st.text("ab-/?", max_size=12),
)
def test_splitting_once_finds_what_trying_every_way_finds(template: str, text: str) -> None:
    assert Template(template).match(f"x:{text}") == by_regex(template, f"x:{text}")


def test_no_uri_takes_long_to_refuse() -> None:
    template = Template("log://{year}-{month}-{day}")
    start = time.process_time()
    assert template.match("log://" + "-" * 800 + "/") is None  # 2 s for one that tries every way
    assert time.process_time() - start < 0.1
