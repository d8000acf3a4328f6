"""Batches: the events of one publish, by column."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, Self, overload

from holdfast.model.event import Event
from holdfast.model.garbage import uncollected


class Batch(Sequence[Event]):
    """Events by column, in the order of the fields of `Event`.

    The events themselves are made when somebody first looks at one: a store that takes columns never does.
    """

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        self.columns = columns

    @classmethod
    def of(cls, events: Sequence[Event]) -> Self:
        """The columns of at least one event."""
        if isinstance(events, cls):
            return events
        with uncollected():
            return cls(list(zip(*events, strict=True)))

    @cached_property
    def _events(self) -> list[Event]:
        with uncollected():
            return list(map(tuple.__new__, repeat(Event), zip(*self.columns, strict=True)))

    @property
    def data(self) -> Sequence[bytes]:
        """The data of each event."""
        return self.columns[0]

    @property
    def ids(self) -> Sequence[str]:
        """The id of each event."""
        return self.columns[1]

    def __len__(self) -> int:
        return len(self.data)

    @overload
    def __getitem__(self, place: int) -> Event: ...
    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...
    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        return self._events[place]
