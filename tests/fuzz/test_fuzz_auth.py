"""Tokens, signatures and scopes: nothing that is not exactly right gets anybody in."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from hostile import BYTES, REFUSED, TEXTS, attempt, fuzzed
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.model.scopes import ADMIN, VERBS, scope_of
from holdfast.server.auth import signing
from holdfast.server.auth.signing import Signed
from holdfast.server.auth.tokens import Token, Tokens, decode, encode, hash_of

NOW = datetime(2026, 7, 1, tzinfo=UTC)
KEY = hash_of("secret")
REQUEST = Signed("POST", "/api/v1/channels/orders/events", "a=1&b=2", b'{"data": 1}')
HEADER = signing.sign(REQUEST, "0" * 16, KEY, "1782864000")


@fuzzed()
@given(st.one_of(TEXTS, st.text("HF1 id=,time.signature0123456789abcdef", max_size=130)))
def test_a_header_is_a_signature_or_none(text: str) -> None:
    found = signing.parse(text)
    if found is not None:
        assert f"HF1 id={found.token},time={found.time},signature={found.digest}" == text
        signing.timely(found, NOW, timedelta(minutes=5))
        assert not signing.holds(found, REQUEST, [KEY])


@fuzzed()
@given(st.integers(0, len(HEADER) - 1), st.characters(), st.sampled_from(Signed._fields), BYTES)
def test_a_signature_holds_for_its_request_and_no_other(
    at: int, letter: str, part: str, other: bytes
) -> None:
    signature = signing.parse(HEADER)
    assert signature is not None
    assert signing.holds(signature, REQUEST, [KEY])
    changed = signing.parse(HEADER[:at] + letter + HEADER[at + 1 :])
    assert (
        changed in (None, signature)
        or changed.token != signature.token
        or not signing.holds(changed, REQUEST, [KEY])
    )
    value = other if part == "body" else other.decode("latin-1")
    tampered = REQUEST._replace(**{part: value})
    same = tampered == REQUEST or (part == "method" and str(value).upper() == "POST")
    assert signing.holds(signature, tampered, [KEY]) == same
    assert not signing.holds(signature, REQUEST, [hash_of("other")])


@fuzzed()
@given(TEXTS, TEXTS, st.one_of(TEXTS, st.sampled_from(list(VERBS))))
def test_a_scope_is_read_back_or_refused(channel: str, consumer: str, kind: str) -> None:
    scope = attempt(scope_of, kind, channel or None, consumer or None)
    if scope is not REFUSED:
        token = Token("0" * 16, scope, "name", KEY, NOW, NOW, None, KEY, NOW)
        assert decode(token.id, encode(token)) == token


@fuzzed(0.1, shrink=False)
@given(st.data())
async def test_no_other_text_is_the_token(database: str, data: st.DataObject) -> None:
    async with holdfast.connect(database) as bus:
        tokens = Tokens(bus, "gbe")
        issued = await tokens.create(ADMIN)
        for _ in range(20):
            at = data.draw(st.integers(0, len(issued.text)))
            text = data.draw(
                st.one_of(
                    TEXTS,
                    st.characters().map(
                        lambda letter, at=at: issued.text[:at] + letter + issued.text[at + 1 :]
                    ),  # type: ignore[misc]
                    st.just(issued.text[:at]),
                )
            )
            assert (await tokens.verify(text) is not None) == (text == issued.text)
            await tokens.find(text)
        assert await tokens.verify(issued.text) == issued.token


def test_refusing_takes_no_longer_for_longer_texts() -> None:
    began = time.process_time()
    for text in ("HF1 id=" + "0" * 10**6, "hf_" * 10**6, "HF1 " * 10**6):
        signing.parse(text)
    assert time.process_time() - began < 1
