"""A backend with one guard less: what a positive control overrides, everything else goes straight through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.contracts import Backend
from holdfast.wiring import backend


class Weakened:
    """Overridden by whoever switches a guard off."""

    def __init__(self, url: str) -> None:
        self.inner = backend(url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def maker(sound: bool, weakened: Callable[[str], Any]) -> Callable[[str], Backend]:
    """Makes backends: sound ones, or such with a guard less."""
    return backend if sound else weakened
