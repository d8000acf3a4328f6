"""Collections find what is made within the block, and skip what was there before."""

from __future__ import annotations

import gc
import weakref

from holdfast.model.gc_pause import gc_frozen


class Ring:
    def __init__(self) -> None:
        self.itself = self


def test_what_there_is_at_the_start_is_passed_over_and_what_comes_later_is_not() -> None:
    before = Ring()
    with gc_frozen():
        assert gc.get_freeze_count() > 10_000
        kept, made = weakref.ref(before), Ring()
        later = weakref.ref(made)
        del before, made
        gc.collect()
        assert later() is None
        assert kept() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert kept() is None
