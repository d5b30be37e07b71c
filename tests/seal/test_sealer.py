"""A token is good for the request it was issued for, and refused for everything else."""

import base64
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.errors import StateTooLarge, TokenRefused, Unavailable
from antiphon.protocol.journal import Entry, Journal
from antiphon.protocol.request import Principal
from antiphon.seal.claims import Binding, Claims, Handle, Pending, encode
from antiphon.seal.sealer import Sealer, to_text
from tests.seal.conftest import NEW, OLD, Clock, make_sealer, ready

same_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def claims(
    sealer: Sealer, clock: Clock, binding: Binding, journal: Journal, pending: tuple[Pending, ...]
) -> Claims:
    return sealer.claims(
        binding,
        call="c" * 32,
        round=2,
        deadline=clock.now + 86_400,
        version="3",
        journal=journal,
        pending=pending,
        trace="trace",
    )


@pytest.fixture
async def token(sealer: Sealer, claims: Claims) -> str:
    return await ready(sealer.seal(encode(claims)))


async def reason(sealer: Sealer, text: object, binding: Binding) -> str:
    with pytest.raises(TokenRefused) as refused:
        await ready(sealer.open(text, binding))
    assert str(refused.value) == TokenRefused.MESSAGE
    return refused.value.reason


async def test_a_token_opens_into_the_claims_it_was_sealed_from(
    sealer: Sealer, claims: Claims, token: str, binding: Binding
):
    assert await ready(sealer.open(token, binding)) == claims


async def test_a_token_is_issued_now_and_expires_after_the_ttl_but_never_after_its_call(
    sealer: Sealer, clock: Clock, binding: Binding, journal: Journal
):
    def times(**more: Any) -> tuple[float, float]:
        made = sealer.claims(binding, call="c", round=1, version="", journal=journal, **more)
        return made.issued - clock.now, made.expires - clock.now

    assert times(deadline=clock.now + 3600) == (0, 600)
    assert times(deadline=clock.now + 3600, ttl=1800.0) == (0, 1800)
    assert times(deadline=clock.now + 60) == (0, 60)
    assert times(deadline=clock.now + 60, ttl=1800.0) == (0, 60)


OTHER: dict[str, Any] = {
    "method": "prompts/get",
    "target": "destroy",
    "handler": "destroy",
    "arguments": b"\x02" * 32,
    "principal": Principal(subject="eve"),
    "audience": "shop",
}


@pytest.mark.parametrize("name", OTHER)
async def test_a_token_for_another_request_is_refused(
    sealer: Sealer, token: str, binding: Binding, name: str
):
    other = msgspec.structs.replace(binding, **{name: OTHER[name]})

    assert await reason(sealer, token, other) == name


@pytest.mark.parametrize(
    ("later", "why"), [(-31, "future"), (600, "expired"), (86_400, "deadline")]
)
async def test_a_token_out_of_its_time_is_refused(
    sealer: Sealer, clock: Clock, token: str, binding: Binding, later: float, why: str
):
    clock.now += later

    assert await reason(sealer, token, binding) == why


@pytest.mark.parametrize("text", ["", None, 7, b"bytes", ["a"], {"a": 1}, True])
async def test_a_state_that_is_empty_or_no_text_is_refused(
    sealer: Sealer, binding: Binding, text: object
):
    assert await reason(sealer, text, binding) == "malformed"


async def test_a_token_that_is_too_long_is_refused_before_it_is_read(
    clock: Clock, token: str, binding: Binding
):
    short = make_sealer(clock, max_bytes=len(token) - 1)

    assert await reason(short, token, binding) == "too-long"
    assert await reason(short, "!" * len(token), binding) == "too-long"
    assert await ready(make_sealer(clock, max_bytes=len(token)).open(token, binding))


async def test_a_token_that_would_be_too_long_is_not_made_and_its_entries_are_named(
    clock: Clock, claims: Claims
):
    large = msgspec.structs.replace(
        claims, journal=Journal(seed=b"", entries=[Entry("memo", "catalogue", b"x" * 5000)])
    )

    with pytest.raises(StateTooLarge) as too_large:
        make_sealer(clock, max_bytes=5000).seal(encode(large), journal=large.journal)
    assert [name for name, _ in too_large.value.largest] == ["memo catalogue"]


async def test_a_custom_codec_makes_no_token_that_is_too_long(clock: Clock, claims: Claims):
    class Long(Vault):
        async def seal(self, data: bytes, aad: bytes) -> bytes:
            return bytes(60_000)

    with pytest.raises(StateTooLarge) as too_large:
        await ready(with_codec(clock, Long()).seal(encode(claims), journal=claims.journal))
    assert too_large.value.size == 80_000
    assert [name for name, _ in too_large.value.largest] == ["ask placement", "state"]


async def test_every_changed_character_is_refused(sealer: Sealer, token: str, binding: Binding):
    for position, character in enumerate(token):
        bent = token[:position] + ("A" if character != "A" else "B") + token[position + 1 :]
        why = await reason(sealer, bent, binding)
        assert why in {"format", "unknown-key", "forged", "malformed"}


@same_fixture
@given(where=st.integers(min_value=0), by=st.text(max_size=3))
async def test_anything_put_in_place_of_a_character_is_refused(
    sealer: Sealer, token: str, binding: Binding, where: int, by: str
):
    position = where % len(token)
    if by == token[position]:
        return
    await reason(sealer, token[:position] + by + token[position + 1 :], binding)


@same_fixture
@given(cut=st.integers(min_value=1), more=st.text(min_size=1, max_size=5))
async def test_any_truncation_and_any_extension_is_refused(
    sealer: Sealer, token: str, binding: Binding, cut: int, more: str
):
    cut = 1 + cut % len(token)
    for bad in (token[:-cut], token[cut:], token + more, more + token):
        await reason(sealer, bad, binding)


@same_fixture
@given(st.text(max_size=400) | st.binary(max_size=300).map(to_text))
async def test_whatever_was_not_sealed_here_is_refused(sealer: Sealer, binding: Binding, text: str):
    await reason(sealer, text, binding)


@pytest.mark.parametrize("extra", range(3))
async def test_a_token_written_in_another_way_is_refused(
    sealer: Sealer, claims: Claims, binding: Binding, extra: int
):
    longer = msgspec.structs.replace(claims, trace="t" * (500 + extra))
    token = await ready(sealer.seal(encode(longer)))
    data = base64.urlsafe_b64decode(token + "==")
    padded = base64.urlsafe_b64encode(data).decode()
    others = {padded, base64.b64encode(data).decode(), padded + "==", token + "\n", " " + token}
    others |= {
        base64.b64encode(data).decode().rstrip("="),
        token + "=",
        token[:20] + "\n" + token[20:],
    }
    if len(token) % 4:
        # The unused bits of the last character, set: lenient decoders read the same bytes.
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        twin = token[:-1] + alphabet[alphabet.index(token[-1]) + 1]
        assert base64.urlsafe_b64decode(twin + "==") == data
        others.add(twin)

    for other in others - {token}:
        assert await reason(sealer, other, binding) == "malformed"
    assert await ready(sealer.open(token, binding)) == longer


async def test_a_token_of_an_unknown_key_is_refused_and_one_of_an_old_key_opens(
    clock: Clock, claims: Claims, binding: Binding
):
    old = await ready(make_sealer(clock, OLD).seal(encode(claims)))

    assert await ready(make_sealer(clock, NEW, OLD).open(old, binding)) == claims
    assert await reason(make_sealer(clock, NEW), old, binding) == "unknown-key"


async def test_an_operator_reads_a_token_that_no_request_could_use(
    sealer: Sealer, clock: Clock, claims: Claims, token: str
):
    clock.now += 10**6

    assert await sealer.inspect(token) == claims


async def test_claims_carry_a_journal_or_its_handle_never_both_or_none(
    sealer: Sealer, claims: Claims, binding: Binding
):
    stored = msgspec.structs.replace(claims, journal=None, handle=Handle(2, b"d" * 32))

    assert await ready(sealer.open(await ready(sealer.seal(encode(stored))), binding)) == stored
    for change in ({"journal": None}, {"handle": Handle(2, b"")}):
        token = await ready(sealer.seal(encode(msgspec.structs.replace(claims, **change))))
        with pytest.raises(TokenRefused, check=lambda e: e.reason == "format"):
            await ready(sealer.open(token, binding))


# --- what a store keeps, and cursors ------------------------------------------------------------


def test_protected_bytes_are_revealed_for_their_place_only(sealer: Sealer):
    protected = sealer.protect(b"outcome", "call 1 round 2")

    assert isinstance(protected, bytes)
    assert sealer.reveal(protected, "call 1 round 2") == b"outcome"
    assert b"outcome" not in protected
    with pytest.raises(TokenRefused, check=lambda e: e.reason == "forged"):
        sealer.reveal(protected, "call 1 round 3")
    for purpose in ("cursor", "token"):
        with pytest.raises(TokenRefused, check=lambda e: e.reason == "forged"):
            sealer.unseal(to_text(protected), purpose, b"call 1 round 2")


async def test_a_cursor_is_text_and_neither_a_token_nor_a_cursor_of_another_list(
    sealer: Sealer, token: str, binding: Binding
):
    cursor = sealer.seal(b"100", "cursor", b"tools/list")

    assert sealer.unseal(cursor, "cursor", b"tools/list") == b"100"
    assert await reason(sealer, cursor, binding) == "forged"
    for bad, place in ((cursor, b"prompts/list"), (token, b"tools/list"), ("", b""), (4, b"")):
        with pytest.raises(TokenRefused):
            sealer.unseal(bad, "cursor", place)


def test_what_one_process_protected_another_with_the_same_keys_reveals(clock: Clock):
    protected = make_sealer(clock, OLD).protect(b"x", "here")

    assert isinstance(protected, bytes)
    assert make_sealer(clock, NEW, OLD).reveal(protected, "here") == b"x"


def test_with_keys_nothing_is_awaited(sealer: Sealer, claims: Claims, binding: Binding):
    token = sealer.seal(encode(claims))

    assert isinstance(token, str)
    assert sealer.open(token, binding) == claims


# --- a codec of the user's own -------------------------------------------------------------------


class Vault:
    """A key service in miniature: it keeps what it sealed and gives out receipts."""

    def __init__(self) -> None:
        self.kept: dict[bytes, tuple[bytes, bytes]] = {}

    async def seal(self, data: bytes, aad: bytes) -> bytes:
        receipt = b"receipt %d" % len(self.kept)
        self.kept[receipt] = (data, aad)
        return receipt

    async def open(self, data: bytes, aad: bytes) -> bytes:
        kept, bound = self.kept[data]
        if bound != aad:
            raise PermissionError("secret detail of the vault")
        return kept


def with_codec(clock: Clock, codec: object) -> Sealer:
    return Sealer(
        None,
        ttl=timedelta(minutes=10),
        audience="cloud",
        clock=clock,
        entropy=lambda size: b"\0" * size,
        codec=codec,  # pyright: ignore[reportArgumentType]
    )


async def test_a_custom_codec_seals_tokens_protects_values_and_needs_no_keys(
    clock: Clock, claims: Claims, binding: Binding
):
    sealer = with_codec(clock, Vault())
    token = await ready(sealer.seal(encode(claims)))
    protected = await ready(sealer.protect(b"x", "here"))

    assert await ready(sealer.open(token, binding)) == claims
    assert await ready(sealer.reveal(protected, "here")) == b"x"
    with pytest.raises(TokenRefused, check=lambda e: e.reason == "codec"):
        await ready(sealer.reveal(protected, "there"))


async def test_an_empty_state_never_reaches_a_custom_codec(clock: Clock, binding: Binding):
    assert await reason(with_codec(clock, Vault()), "", binding) == "malformed"


async def test_claims_are_checked_whatever_the_codec(
    clock: Clock, claims: Claims, binding: Binding
):
    sealer = with_codec(clock, Vault())
    token = await ready(sealer.seal(encode(claims)))
    other = msgspec.structs.replace(binding, target="destroy")

    assert await reason(sealer, token, other) == "target"


async def test_whatever_a_custom_codec_raises_is_a_refusal_that_does_not_show_it(
    clock: Clock, claims: Claims, binding: Binding
):
    sealer = with_codec(clock, Vault())
    cursor = await ready(sealer.seal(b"x", "cursor", b""))

    for text in (cursor, to_text(b"no such receipt")):
        with pytest.raises(TokenRefused, check=lambda e: e.reason == "codec") as refused:
            await ready(sealer.open(text, binding))
        assert refused.value.__cause__ is None
        assert refused.value.__suppress_context__


@pytest.mark.parametrize("gives", [None, 64, "text", bytearray(b"x")])
async def test_a_custom_codec_that_gives_no_bytes_is_refused(
    clock: Clock, claims: Claims, binding: Binding, gives: object
):
    class Broken:
        async def seal(self, data: bytes, aad: bytes) -> object:
            return gives

        open = seal

    sealer = with_codec(clock, Broken())
    with pytest.raises(Unavailable):
        await ready(sealer.seal(encode(claims)))
    assert await reason(sealer, "AAAA", binding) == "codec"


def test_a_sealer_with_neither_keys_nor_codec_or_with_both_is_not_made(clock: Clock):
    with pytest.raises(ValueError, match="either a keyring or a codec"):
        with_codec(clock, None)
    with pytest.raises(ValueError, match="either a keyring or a codec"):
        make_sealer(clock, codec=Vault())


# --- nothing shows ------------------------------------------------------------------------------


async def test_a_token_hides_what_it_carries(claims: Claims, token: str):
    data = base64.urlsafe_b64decode(token + "==")

    assert b"eu-west" in encode(claims)
    for plain in (b"eu-west", b"provision", b"ada", b"trace"):
        assert plain not in data


async def test_no_error_and_no_repr_shows_a_key_a_token_or_an_answer(
    sealer: Sealer, token: str, binding: Binding
):
    shown = [repr(sealer), str(sealer)]
    for bad in (token[:-1], token + "A", "B" + token[1:], "*" + token):
        with pytest.raises(TokenRefused) as refused:
            await ready(sealer.open(bad, binding))
        shown += [repr(refused.value), str(refused.value), repr(vars(refused.value))]

    for text in shown:
        for secret in (NEW[:8], token[10:20], "eu-west"):
            assert secret not in text
