"""Pauses of Python's garbage collector, where a collection would cost more than it finds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_disabled() -> Iterator[None]:
    """No collections within the block: it makes many objects that all stay. Nothing may be awaited in it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Collections skip every object that exists now. In a server that has started, each would hold up the
    event loop for 50 ms and more."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
