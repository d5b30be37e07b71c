"""URI templates: what they match, what they give, what climbs out."""

import pytest

from antiphon.errors import ConfigError
from antiphon.handlers.uri_template import Template


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("shop://orders/{id}", "shop://orders/42", {"id": "42"}),
        ("shop://orders/{id}", "shop://orders/a%20b", {"id": "a b"}),
        ("shop://{a}/x/{b}", "shop://1/x/2", {"a": "1", "b": "2"}),
        ("file:///{+path}", "file:///a/b.txt", {"path": "a/b.txt"}),
    ],
)
def test_a_uri_gives_its_variables(template: str, uri: str, values: dict[str, str]) -> None:
    assert Template(template).match(uri) == values


@pytest.mark.requirement("RES-01")
@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("shop://orders/{id}", "shop://orders/"),
        ("shop://orders/{id}", "shop://orders/1/2"),
        ("shop://orders/{id}", "shop://orders/..%2f..%2fetc"),
        ("shop://orders/{id}", "shop://orders/%2e%2e"),
        ("file:///{+path}", "file:///a/../b"),
        ("file:///{+path}", "file:///a%00b"),
        ("file:///{+path}", "file:///a%5c..%5cb"),
    ],
)
def test_what_would_climb_out_does_not_match(template: str, uri: str) -> None:
    assert Template(template).match(uri) is None


@pytest.mark.parametrize("template", ["shop://{a}/{a}", "shop://{a", "x://{+a}/{+b}", "x://y"])
def test_a_template_that_cannot_be_matched_quickly_is_refused(template: str) -> None:
    with pytest.raises(ConfigError):
        Template(template)
