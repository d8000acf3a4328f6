"""Notices: what a listener makes of the text that a store sends, whoever sent it."""

from __future__ import annotations

import pytest

from holdfast.backends.notices import deliver

CHANNELS = frozenset({"orders", "mail"})


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("orders", ["orders"]),
        ("orders/billing/12-0", ["orders/billing/12-0"]),
        ("other", []),
        ("other/billing/12", []),
        ("orders/billing", []),
        ("orders/billing/1/2", []),
        ("orders//", ["orders//"]),
        ("", []),
        ("/", []),
        ("\ufffd\x00", []),
    ],
)
def test_only_what_is_about_ones_channels_is_told(text: str, heard: list[str]) -> None:
    told: list[str] = []
    deliver(text, CHANNELS, told.append, lambda *about: told.append("/".join(about)))
    assert told == heard
