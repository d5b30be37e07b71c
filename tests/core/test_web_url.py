"""The host that a person is shown is the one that a browser opens."""

import pytest

from antiphon.protocol.web_url import imitates, web_host


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://good.example/pay?to=a@b#c@d", "good.example"),
        ("HTTPS://GOOD.example.:8443", "good.example"),
        ("http://127.0.0.1:8400/mcp", "127.0.0.1"),
        ("http://[::0001]/", "[::1]"),
        ("http://localhost/", "localhost"),
        ("https://my_host-1.example/", "my_host-1.example"),
    ],
)
def test_an_ordinary_url_has_one_host(url: str, host: str) -> None:
    assert web_host(url) == host
    assert not imitates(host)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://xn--ggle-0nda.com/", "xn--ggle-0nda.com"),
        ("https://g\u043e\u043egle.com/", "xn--ggle-55da.com"),
        ("https://b\u00fccher.example/", "xn--bcher-kva.example"),
        ("https://\u0430\u0440\u0440\u04cf\u0435.com/", "xn--80ak6aa92e.com"),
        ("https://fa\u00df.example/", "xn--fa-hia.example"),
    ],
)
def test_letters_that_can_imitate_others_are_shown_as_browsers_send_them(
    url: str, host: str
) -> None:
    assert web_host(url) == host
    assert imitates(host)


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example\\@good.example/pay",
        "https://evil.example\\.good.example/",
        "https:\\\\evil.example/",
        "https://good.example/a\\b",
        "https://good.example@evil.example/",
        "https://evil.example\t@good.example/",
        "https://evil.example\n/",
        "\x01https://evil.example/",
        " https://evil.example/",
        "https://good.example/ x",
        "https://good.example/\u202egnp",
        "https://good.example/\u00a0",
        "https://go\u200bod.example/",
        "https://good\u3002example/",
        "https://\uff47ood.example/",
        "https://good%2eexample/",
        "https://0x7f.1/",
        "https://2130706433/",
        "https://0177.0.0.1/",
        "https://good..example/",
        "https://[::1]evil.example/",
        "https://[v1.x]/",
        "https://good.example:port/",
        "https://good.example:99999/",
        "https:///evil.example/",
        "https:evil.example",
        "javascript:alert(1)//http://good.example",
        "file:///etc/passwd",
        "https://",
        "",
        "https://good.example/" + "a" * 10_000,
    ],
)
def test_a_url_that_can_be_read_in_two_ways_has_no_host(url: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        web_host(url)
