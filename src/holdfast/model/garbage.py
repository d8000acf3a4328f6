"""Garbage: when Python may look for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Make many objects that all stay: to look for garbage among them costs more than to make them.

    Nothing may be awaited within the block.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def spared() -> Iterator[None]:
    """Looks for garbage pass over all that there is now: those of a server that has started would hold up its
    event loop for 50 ms and more each time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
