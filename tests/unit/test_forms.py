"""Forms are decoded as everybody does it, whatever the pieces."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.server import bodies

TEXTS = st.text(st.sampled_from("aZ +&=%25ü😀\x00\r\n"), max_size=30)


def decoded(body: bytes) -> list[tuple[str, str]]:
    return asyncio.run(bodies.form_fields(body))


@given(st.lists(st.tuples(TEXTS, TEXTS)), st.integers(3, 40))
def test_what_a_browser_sends_comes_back(sent: list[tuple[str, str]], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "FORM_PIECE", piece)
        assert decoded(urlencode(sent).encode()) == sent


@given(st.text(st.sampled_from("a=&%4+;1fG"), max_size=60), st.integers(3, 40))
def test_what_is_no_form_is_read_like_one_by_all(body: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "FORM_PIECE", piece)
        assert decoded(body.encode()) == parse_qsl(body, keep_blank_values=True)
