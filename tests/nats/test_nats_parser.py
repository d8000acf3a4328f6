"""The parser on NATS: what it needs of nats-py is checked, so that another release fails clearly."""

from __future__ import annotations

import pytest
from nats.aio.client import Client
from nats.protocol.parser import Parser

from holdfast.backends.nats.wire.parser import ReplyClient
from holdfast.model.errors import HoldfastError


async def _another_signature(self: Client, message: object) -> None:
    """As a later release might have it."""


def test_the_installed_library_is_as_expected() -> None:
    ReplyClient({})


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Client, "_process_msg", _another_signature),
        (Parser, "parse", lambda self, data=b"": None),
        (Parser, "reset", None),
    ],
    ids=["_process_msg", "parse", "reset"],
)
def test_a_library_that_has_changed_is_refused(
    owner: type, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "reset":
        monkeypatch.setattr(Parser, "__init__", lambda self, nc=None: setattr(self, "nc", nc))
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(HoldfastError, match=rf"nats-py .* has changed {owner.__name__}\.{name}"):
        ReplyClient({})


def test_a_client_without_a_parser_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Client.__init__

    def without(self: Client) -> None:
        made(self)
        del self._ps

    monkeypatch.setattr(Client, "__init__", without)
    with pytest.raises(HoldfastError, match=r"has changed Client\._ps, Parser\.nc"):
        ReplyClient({})
