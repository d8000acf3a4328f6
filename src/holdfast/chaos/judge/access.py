"""Judgement on access: nobody is served what their token is not for (I16)."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.chaos.history import Call, of

_REFUSED = 400


def trespassed(calls: list[Call]) -> Iterator[str]:
    """Requests that were served; whoever made them notes the channel that they were about, and the one that
    their token was issued for."""
    for call in of(calls, "request"):
        for item, status in call.told():
            if status < _REFUSED and item["channel"] != item["granted"]:
                granted = f"a token for {item['granted']}" if item["granted"] else "no token"
                yield f"{item['channel']} was served to somebody with {granted}"
