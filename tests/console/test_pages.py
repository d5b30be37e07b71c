"""The pages of the inbox over HTTP: who sees what, who decides, and what is refused."""

import html
import re
from typing import Any

import httpx
import pytest

from antiphon import ConfigError
from antiphon.apps.console.app import BODY
from antiphon.console import Console, OneTimeLink
from antiphon.protocol.chain import verify_chain
from antiphon.protocol.inbox import Face, Person
from tests.console.console_inbox import (
    ANNA,
    BO,
    CARL,
    DORA,
    ISSUER,
    OURS,
    URL,
    ConsoleInbox,
    form_of,
    go_to_place,
    hidden,
    schema,
    statuses,
)


@pytest.fixture
def held_inbox() -> ConsoleInbox:
    return ConsoleInbox()


def path(item: Any) -> str:
    return f"/console/ask/{item.id}"


# --- deciding ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "status", "words"),
    [("approve", "approved", "Approved by"), ("decline", "declined", "Declined by")],
)
async def test_a_person_decides_and_the_page_says_who(
    held_inbox: ConsoleInbox, choice: str, status: str, words: str
) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        page = await anna.get(path(item))
        held_inbox.clock.now += 60
        sent = form_of(page, choice, note="checked <b>twice</b>")
        done = await anna.post(path(item), data=sent, headers=OURS)
        assert (done.status_code, done.headers["location"]) == (303, str(page.url.path))
        after = await anna.get(path(item))
    assert statuses(after)[0].startswith(f"{words} Anna Berg (finance)")
    assert "checked &lt;b&gt;twice&lt;/b&gt;" in after.text
    assert 'name="choice"' not in after.text, "no buttons after the decision"
    assert await held_inbox.status(item) == status
    [record] = await held_inbox.store.decisions(item.server)
    assert (record.subject, record.decision, record.how) == ("anna", choice, "signed-in")
    assert record.at - record.shown == pytest.approx(60)
    assert b"checked" not in record.note or not held_inbox.environment.store.durable
    assert verify_chain([record]) is None


async def test_looking_decides_nothing(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        for query in ("", "?choice=approve", "?choice=approve&token=x"):
            assert (await anna.get(path(item) + query)).status_code == 200
            assert (await anna.head(path(item) + query)).status_code in (200, 405)
    assert await held_inbox.status(item) == "open"


async def test_a_link_is_not_used_up_by_previews(held_inbox: ConsoleInbox) -> None:
    link = await held_inbox.app.make_link(ANNA)
    async with held_inbox.browser() as scanner:
        for _ in range(3):
            assert (await scanner.get(link)).status_code == 200
        assert (await scanner.get("/console/inbox")).status_code == 303
    async with held_inbox.browser() as anna:
        go_to_place(anna, await anna.post(link, headers=OURS))
        assert (await anna.get("/console/inbox")).status_code == 200
    async with held_inbox.browser() as late:
        again = await late.post(link, headers=OURS)
        assert again.status_code == 403
        assert "used already" in again.text


async def test_a_link_is_good_for_ten_minutes(held_inbox: ConsoleInbox) -> None:
    link = await held_inbox.app.make_link(ANNA)
    held_inbox.clock.now += 601
    async with held_inbox.browser() as anna:
        assert (await anna.post(link, headers=OURS)).status_code == 403


async def test_a_question_that_changed_is_shown_again(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        page = await anna.get(path(item))
        sent = form_of(page, digest=b"another".hex(), note="my words")
        answer = await anna.post(path(item), data=sent, headers=OURS)
    assert answer.status_code == 409
    assert "The question changed while you read it" in answer.text
    assert "my words" in answer.text
    assert await held_inbox.status(item) == "open"


async def test_the_second_decision_is_told_who_was_first(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna, held_inbox.signed_in(BO) as bo:
        first, second = await anna.get(path(item)), await bo.get(path(item))
        await anna.post(path(item), data=form_of(first, "decline"), headers=OURS)
        late = await bo.post(path(item), data=form_of(second, note="kept"), headers=OURS)
    assert late.status_code == 409
    assert statuses(late)[0].startswith("Declined by Anna Berg")
    assert await held_inbox.status(item) == "declined"
    assert len(await held_inbox.store.decisions(item.server)) == 1


async def test_nothing_is_decided_after_its_time(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        page = await anna.get(path(item))
        held_inbox.clock.now += 3_601
        late = await anna.post(path(item), data=form_of(page), headers=OURS)
        again = await anna.get(path(item))
    assert late.status_code == 409
    assert any("Nobody answered in time" in one for one in statuses(again))
    assert await held_inbox.store.decisions(item.server) == []


async def test_several_people_are_needed(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put(need=2)
    async with held_inbox.signed_in(ANNA) as anna, held_inbox.signed_in(BO) as bo:
        page = await anna.get(path(item))
        assert "0 of 2 needed" in page.text
        await anna.post(path(item), data=form_of(page), headers=OURS)
        waiting = await anna.get(path(item))
        assert "1 of 2 needed" in waiting.text
        assert 'name="choice"' not in waiting.text
        twice = await anna.post(path(item), data=form_of(page), headers=OURS)
        assert twice.status_code == 403
        assert "decided this already" in twice.text
        await bo.post(path(item), data=form_of(await bo.get(path(item))), headers=OURS)
    assert await held_inbox.status(item) == "approved"


# --- who may -------------------------------------------------------------------------------------


async def test_who_is_not_signed_in_sees_nothing(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.browser() as nobody:
        for address in ("/console/inbox", path(item)):
            answer = await nobody.get(address)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/console/login?next=%2Fconsole%2F")
            assert "Refund" not in answer.text
        sent = {"token": "x", "digest": item.digest.hex(), "choice": "approve"}
        assert (await nobody.post(path(item), data=sent, headers=OURS)).status_code == 401
        assert (await nobody.get("/console/events")).status_code == 401
    assert await held_inbox.status(item) == "open"


async def test_what_is_not_for_somebody_looks_like_what_does_not_exist(
    held_inbox: ConsoleInbox,
) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(DORA) as dora:
        hers, nothing = await dora.get(path(item)), await dora.get("/console/ask/" + "0" * 32)
        assert (hers.status_code, nothing.status_code) == (404, 404)
        assert hers.text == nothing.text
        sent = {"token": "x", "digest": item.digest.hex(), "choice": "approve"}
        assert (await dora.post(path(item), data=sent, headers=OURS)).status_code == 404
        listed = await dora.get("/console/inbox")
        assert "Nothing waits for you" in listed.text


async def test_the_caller_sees_the_call_but_does_not_decide_it(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(CARL) as carl:
        page = await carl.get(path(item))
        assert page.status_code == 200
        assert "somebody else has to decide" in page.text
        assert 'name="choice"' not in page.text
        token = hidden(page, "token")
        sent = {"token": token, "digest": item.digest.hex(), "choice": "approve"}
        forged = await carl.post(path(item), data=sent, headers=OURS)
        assert forged.status_code == 403
    assert await held_inbox.status(item) == "open"


async def test_the_same_human_under_another_issuer_is_the_caller() -> None:
    held_inbox = ConsoleInbox(
        same_person=lambda person, caller: person.subject == f"{caller.subject}@corp"
    )
    item = await held_inbox.put()
    twin = Person("https://other.example", "carl@corp", "Carl", ("finance",))
    async with held_inbox.signed_in(twin) as carl:
        page = await carl.get(path(item))
        assert 'name="choice"' not in page.text
        sent = {
            "token": hidden(page, "token"), "digest": item.digest.hex(), "choice": "approve",
        }  # fmt: skip
        assert (await carl.post(path(item), data=sent, headers=OURS)).status_code == 403
    assert await held_inbox.status(item) == "open"


async def test_an_operator_sees_that_something_waits_but_not_what(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    operator = Person(ISSUER, "ola", "Ola", ("operator",))
    async with held_inbox.signed_in(operator) as ola:
        page = await ola.get(path(item))
    assert page.status_code == 200
    assert "A question of refund" in page.text
    assert "order 4711" not in page.text
    assert "ACME" not in page.text
    assert 'name="choice"' not in page.text


async def test_groups_become_roles() -> None:
    held_inbox = ConsoleInbox(roles={"finance": "grp-finance"})
    item = await held_inbox.put()
    async with held_inbox.signed_in(Person(ISSUER, "anna", "Anna", ("grp-finance",))) as anna:
        assert 'name="choice"' in (await anna.get(path(item))).text
    async with held_inbox.signed_in(Person(ISSUER, "eve", "Eve", ("finance",))) as eve:
        assert (await eve.get(path(item))).status_code == 404


async def test_a_fresh_sign_in_is_asked_for(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put(assurance="fresh")
    stale = Person(ISSUER, "anna", "Anna", ("finance",), held_inbox.clock() - 301)
    async with held_inbox.signed_in(stale) as anna:
        page = await anna.get(path(item))
        assert "Sign in again" in page.text
        sent = {
            "token": hidden(page, "token"), "digest": item.digest.hex(), "choice": "approve",
        }  # fmt: skip
        refused = await anna.post(path(item), data=sent, headers=OURS)
        assert refused.status_code == 403
    fresh = Person(ISSUER, "anna", "Anna", ("finance",), held_inbox.clock())
    async with held_inbox.signed_in(fresh) as anna:
        page = await anna.get(path(item))
        assert (await anna.post(path(item), data=form_of(page), headers=OURS)).status_code == 303
    [record] = await held_inbox.store.decisions(item.server)
    assert record.how == "fresh"


async def test_the_owner_withdraws(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(CARL) as carl, held_inbox.signed_in(ANNA) as anna:
        page = await carl.get(path(item))
        assert "Withdraw" in page.text
        assert "Withdraw" not in (await anna.get(path(item))).text
        forged = {"token": hidden(await anna.get(path(item)), "token")}
        refused = await anna.post(path(item) + "/withdraw", data=forged, headers=OURS)
        assert refused.status_code == 409
        assert await held_inbox.status(item) == "open"
        sent = {"token": hidden(page, "token")}
        done = await carl.post(path(item) + "/withdraw", data=sent, headers=OURS)
        assert done.status_code == 303
    assert await held_inbox.status(item) == "withdrawn"


# --- other sites ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://evil.example"},
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:8401", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "null"},
    ],
    ids=str,
)
async def test_a_form_of_another_site_does_nothing(
    held_inbox: ConsoleInbox, headers: dict[str, str]
) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        sent = form_of(await anna.get(path(item)))
        answer = await anna.post(path(item), data=sent, headers=headers)
        assert answer.status_code == 403
    assert await held_inbox.status(item) == "open"


async def test_a_form_needs_the_token_of_its_own_session(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna, held_inbox.signed_in(BO) as bo:
        own, others = await anna.get(path(item)), await bo.get(path(item))
        for token in ("", "x", hidden(others, "token")):
            sent = form_of(own, token=token)
            answer = await anna.post(path(item), data=sent, headers=OURS)
            assert answer.status_code == 403, token
    assert await held_inbox.status(item) == "open"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8401", "127.0.0.1", "localhost:8401"]
)
async def test_only_the_console_s_own_host_is_served(held_inbox: ConsoleInbox, host: str) -> None:
    async with held_inbox.browser() as anyone:
        answer = await anyone.get("/console/inbox", headers={"host": host})
    assert answer.status_code == 403


async def test_every_page_forbids_scripts_frames_and_caches(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        for address in ("/console/inbox", path(item), "/console/ask/none", "/console/login"):
            headers = (await anna.get(address)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-content-type-options"] == "nosniff"


async def test_hostile_text_is_shown_as_text(held_inbox: ConsoleInbox) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>\u202e\u0007"
    face = Face(evil, ((evil, evil),), evil, evil, evil, evil, evil, b'{"a": "</pre><script>"}')
    item = await held_inbox.put(face, tool="<script>", role="finance")
    async with held_inbox.signed_in(ANNA) as anna:
        for page in (await anna.get(path(item)), await anna.get("/console/inbox")):
            assert page.status_code == 200
            scripts = re.findall(r"<script[^>]*>", page.text)
            assert scripts == ['<script src="/console/static/console.js" type="module">']
            assert "<img" not in page.text
            assert "\u202e" not in page.text
            assert "\\u202e" in html.unescape(page.text)


async def test_signing_in_leads_nowhere_else(held_inbox: ConsoleInbox) -> None:
    async with held_inbox.signed_in(ANNA) as anna:
        for target in (
            "https://evil.example/", "//evil.example/", "/console//evil.example",
            "/elsewhere", "/console/\\evil", "", "/console/inbox\r\nset-cookie: a=b",
        ):  # fmt: skip
            answer = await anna.get("/console/login", params={"next": target})
            place = answer.url.path.removesuffix("/console/login")
            inbox = f"{place}/console/inbox"
            assert (answer.status_code, answer.headers["location"]) == (303, inbox)
            for following in ("/console/ask/abc", f"{place}/console/ask/abc"):
                inside = await anna.get("/console/login", params={"next": following})
                assert inside.headers["location"] == f"{place}/console/ask/abc"


async def test_too_large_a_form_is_refused(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        sent = form_of(await anna.get(path(item)), note="x" * (BODY + 1))
        answer = await anna.post(path(item), data=sent, headers=OURS)
        assert answer.status_code == 413
    assert await held_inbox.status(item) == "open"


# --- sessions ------------------------------------------------------------------------------------


async def test_the_cookie_is_for_the_server_alone() -> None:
    for url, name in ((URL, "antiphon-console-8401="), ("https://mcp.example/console", "__Host-")):
        held_inbox = ConsoleInbox(url=url)
        origin = held_inbox.console.origin
        async with held_inbox.browser(origin) as anna:
            headers = {"origin": origin, "sec-fetch-site": "same-origin"}
            answer = await anna.post(await held_inbox.app.make_link(ANNA), headers=headers)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(name)
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "Path=/" in cookie
        assert ("Secure" in cookie) is url.startswith("https")


async def test_on_this_machine_a_cookie_alone_signs_nobody_in(held_inbox: ConsoleInbox) -> None:
    """Browsers send it to every port of the host, and to whoever listens there."""
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna, held_inbox.signed_in(BO) as bo:
        form = form_of(await anna.get(path(item)))
        jar = [one for one in anna.cookies.jar if one.name == held_inbox.console.cookie]
        stolen = {held_inbox.console.cookie: str(jar[0].value)}
        assert [one.path for one in jar] == [anna.base_url.path.rstrip("/")]
        for place in ("", "/s-" + "A" * 22, bo.base_url.path.rstrip("/"), "/s-"):
            async with held_inbox.browser() as thief:
                thief.cookies.update(stolen)
                for address in ("/console/inbox", path(item), "/console/ops"):
                    answer = await thief.get(place + address)
                    assert answer.status_code in (303, 404), place
                    assert "Anna" not in answer.text
                for address in (path(item), path(item) + "/withdraw", "/console/logout"):
                    answer = await thief.post(place + address, data=form, headers=OURS)
                    assert answer.status_code in (401, 404), place
                answer = await thief.get(place + "/console/events")
                assert answer.status_code in (401, 404), place
        assert (await anna.get("/console/inbox")).status_code == 200
    assert await held_inbox.status(item) == "open"


async def test_the_place_of_a_session_alone_signs_nobody_in(held_inbox: ConsoleInbox) -> None:
    async with held_inbox.signed_in(ANNA) as anna, held_inbox.browser() as thief:
        thief.base_url = anna.base_url
        assert (await thief.get("/console/inbox")).status_code == 303
        thief.cookies.set(held_inbox.console.cookie, "invented")
        assert (await thief.get("/console/inbox")).status_code == 303


async def test_an_address_without_the_place_leads_to_the_page_that_knows_it(
    held_inbox: ConsoleInbox,
) -> None:
    async with held_inbox.signed_in(ANNA) as anna, held_inbox.browser() as elsewhere:
        place = anna.base_url.path.rstrip("/")
        assert f'data-place="{place}"' in (await anna.get("/console/inbox")).text
        sent = await elsewhere.get("/console/ask/abc")
        page = await elsewhere.get(sent.headers["location"])
        assert 'data-following="/console/ask/abc"' in page.text
        held_inbox.clock.now += 8 * 3600 + 1
        sent = await anna.get("/console/ask/abc")
        ended = await elsewhere.get(sent.headers["location"])
        assert f'data-ended="{place}"' in ended.text, "it does not lead back to where nobody is"
        assert 'data-place=""' in ended.text


async def test_behind_tls_a_session_needs_no_place() -> None:
    held_inbox = ConsoleInbox(url="https://mcp.example/console")
    origin = held_inbox.console.origin
    async with held_inbox.browser(origin) as anna:
        headers = {"origin": origin, "sec-fetch-site": "same-origin"}
        answer = await anna.post(await held_inbox.app.make_link(ANNA), headers=headers)
        assert answer.headers["location"] == "/console/inbox"
        assert (await anna.get("/console/inbox")).status_code == 200
        assert not held_inbox.app.serves("/s-" + "A" * 22 + "/console/inbox")


async def test_a_session_ends_when_it_is_idle_or_old_or_left(held_inbox: ConsoleInbox) -> None:
    async with held_inbox.signed_in(ANNA) as anna:
        for _ in range(3):
            held_inbox.clock.now += 7 * 3600
            assert (await anna.get("/console/inbox")).status_code == 200
        held_inbox.clock.now += 4 * 3600
        assert (await anna.get("/console/inbox")).status_code == 303, "older than a day"
    async with held_inbox.signed_in(ANNA) as anna:
        held_inbox.clock.now += 8 * 3600 + 1
        assert (await anna.get("/console/inbox")).status_code == 303, "idle"
    async with held_inbox.signed_in(ANNA) as anna:
        assert (await anna.get("/console/inbox")).status_code == 200
        held_inbox.clock.now += 8 * 3600 + 1
        assert (await anna.get("/console/inbox")).status_code == 303, "idle after it was used"
    async with held_inbox.signed_in(ANNA) as anna:
        page = await anna.get("/console/inbox")
        stolen = dict(anna.cookies)
        refused = await anna.post("/console/logout", data={"token": "x"}, headers=OURS)
        assert refused.status_code == 403
        sent = {"token": hidden(page, "token")}
        await anna.post("/console/logout", data=sent, headers=OURS)
    async with held_inbox.browser() as thief:
        thief.cookies.update(stolen)
        assert (await thief.get("/console/inbox")).status_code == 303


async def test_what_no_session_made_is_no_session(held_inbox: ConsoleInbox) -> None:
    async with held_inbox.browser() as thief:
        for value in (b"", b"x", b"x" * 5_000, b"../..", b"\xe5\xff"):
            thief.cookies.clear()
            headers = {b"cookie": b"antiphon-console-8401=" + value}
            assert (await thief.get("/console/inbox", headers=headers)).status_code == 303


# --- forms ---------------------------------------------------------------------------------------

FIELDS: dict[str, Any] = {
    "mail": {"type": "string", "format": "email", "title": "E-mail"},
    "site": {"type": "string", "format": "uri"},
    "day": {"type": "string", "format": "date"},
    "when": {"type": "string", "format": "date-time"},
    "word": {"type": "string", "minLength": 2, "maxLength": 5},
    "size": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
    "price": {"type": "number"},
    "sure": {"type": "boolean"},
    "colour": {"type": "string", "enum": ["red", "blue"]},
    "plan": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}]},
    "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}},
}
GOOD = {
    "field-mail": "a@example.org",
    "field-site": "https://example.org/",
    "field-day": "2026-11-16",
    "field-when": "2026-11-16T09:30",
    "field-word": "abc",
    "field-size": "4",
    "field-price": "1.5",
    "field-sure": "false",
    "field-colour": "blue",
    "field-plan": "s",
    "field-tags": ["a", "c"],
}


async def test_every_kind_of_field_is_shown_and_answered(held_inbox: ConsoleInbox) -> None:
    face = Face("Which?", schema=schema(**FIELDS))
    item = await held_inbox.put(face, kind="form", role="", own=True)
    async with held_inbox.signed_in(CARL) as carl:
        page = await carl.get(path(item))
        for kind in ("email", "url", "date", "datetime-local", "number", "radio", "checkbox"):
            assert f'type="{kind}"' in page.text, kind
        assert 'id="field-size" name="field-size" type="number" value="3"' in page.text
        assert ">Small</option>" in page.text
        sent = form_of(page, "answer", **GOOD)
        assert (await carl.post(path(item), data=sent, headers=OURS)).status_code == 303
    kept = await held_inbox.store.item(item.id)
    assert kept is not None
    answer = await held_inbox.environment.reveal(kept.answer, f"answer {item.id}")
    assert httpx.Response(200, content=answer).json() == {
        "mail": "a@example.org",
        "site": "https://example.org/",
        "day": "2026-11-16",
        "when": "2026-11-16T09:30:00Z",
        "word": "abc",
        "size": 4,
        "price": 1.5,
        "sure": False,
        "colour": "blue",
        "plan": "s",
        "tags": ["a", "c"],
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mail", "nobody"), ("size", "12"), ("size", "many"), ("word", "toolong"),
        ("colour", "green"), ("day", "tomorrow"), ("tags", ["z"]), ("price", "x"),
        ("sure", "perhaps"), ("mail", ""),
    ],
)  # fmt: skip
async def test_an_answer_that_does_not_fit_is_kept_and_explained(
    held_inbox: ConsoleInbox, field: str, value: Any
) -> None:
    face = Face("Which?", schema=schema(**FIELDS))
    item = await held_inbox.put(face, kind="form", role="", own=True)
    async with held_inbox.signed_in(CARL) as carl:
        page = await carl.get(path(item))
        sent = form_of(page, "answer", **{**GOOD, f"field-{field}": value}, note="kept words")
        answer = await carl.post(path(item), data=sent, headers=OURS)
    assert answer.status_code == 422
    assert f'href="#field-{field}"' in answer.text
    assert f'id="field-{field}-error"' in answer.text
    assert "kept words" in answer.text
    assert 'value="https://example.org/"' in answer.text, "what was typed stays"
    assert await held_inbox.status(item) == "open"


# --- lists ---------------------------------------------------------------------------------------


async def test_the_inbox_lists_what_waits_for_whom(held_inbox: ConsoleInbox) -> None:
    for_finance = await held_inbox.put(Face("For finance?"))
    for_ops = await held_inbox.put(Face("For ops?"), role="ops")
    own = await held_inbox.put(Face("For Carl himself?"), role="", own=True)

    def listed(page: httpx.Response) -> list[str]:
        return re.findall(r'<a href="[^"]*/console/ask/[^"]*">([^<]*)</a>', page.text)

    async with (
        held_inbox.signed_in(ANNA) as anna,
        held_inbox.signed_in(BO) as bo,
        held_inbox.signed_in(CARL) as carl,
    ):
        page = await anna.get("/console/inbox")
        assert listed(page) == ["For finance?"]
        assert "For me (1)" in page.text
        assert sorted(listed(await bo.get("/console/inbox"))) == ["For finance?", "For ops?"]
        ops = await bo.get("/console/inbox", params={"view": "for-me", "role": "ops"})
        assert listed(ops) == ["For ops?"]
        mine = await carl.get("/console/inbox", params={"view": "mine"})
        assert len(listed(mine)) == 3
        assert "My requests (3)" in mine.text
        assert "For Carl himself?" in listed(await carl.get("/console/inbox"))
        sent = form_of(await anna.get(path(for_finance)))
        await anna.post(path(for_finance), data=sent, headers=OURS)
        assert listed(await anna.get("/console/inbox")) == []
        decided = await anna.get("/console/inbox", params={"view": "decided"})
        assert listed(decided) == ["For finance?"]
        assert listed(await bo.get("/console/inbox", params={"view": "decided"})) == []
        assert (await bo.get("/console/inbox", params={"view": "nothing"})).status_code == 404
    assert for_ops.status == own.status == "open"


async def test_long_lists_come_in_pages(held_inbox: ConsoleInbox) -> None:
    for number in range(60):
        held_inbox.clock.now += 1
        await held_inbox.put(Face(f"Question {number:02}?"))
    async with held_inbox.signed_in(ANNA) as anna:
        page = await anna.get("/console/inbox")
        first = re.findall(r">(Question \d\d\?)</a>", page.text)
        more = re.search(r'<a href="[^"]*(/console/[^"]*after=[^"]*)"', page.text)
        assert more is not None
        second = re.findall(
            r">(Question \d\d\?)</a>", (await anna.get(html.unescape(more[1]))).text
        )
    assert [*first, *second] == [f"Question {number:02}?" for number in range(60)]


@pytest.mark.parametrize(
    "query", ["tool=%00", "role=%00", "after=1~%00", "after=x~y", "after=nan~"]
)
async def test_a_filter_that_nothing_can_match_breaks_nothing(
    held_inbox: ConsoleInbox, query: str
) -> None:
    await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        assert (await anna.get(f"/console/inbox?{query}")).status_code == 200


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mcp.example.com/console", "http or https"),
        ("https://mcp.example.com", "a path of its own"),
        ("https://mcp.example.com/", "a path of its own"),
        ("https://mcp.example.com/console?x=1", "a path of its own"),
        ("http://mcp.example.com/console", "must be https"),
        ("ftp://mcp.example.com/console", "http or https"),
    ],
)
def test_an_address_that_would_not_work_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Console(url)


def test_a_login_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="OneTimeLink"):
        Console(URL, login=7)  # pyright: ignore[reportArgumentType]
    assert Console(URL, login=OneTimeLink()).path == "/console"


async def test_an_author_s_function_says_who_somebody_is() -> None:
    def who(request: Any) -> Person | None:
        return ANNA if request.headers.get("x-user") == "anna" else None

    held_inbox = ConsoleInbox(login=who)
    async with held_inbox.browser() as anna:
        go_to_place(anna, await anna.get("/console/login", headers={"x-user": "anna"}))
        assert (await anna.get("/console/inbox")).status_code == 200
    async with held_inbox.browser() as eve:
        assert (await eve.get("/console/login")).status_code == 401
