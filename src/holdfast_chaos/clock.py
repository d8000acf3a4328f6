"""The clock: what this process takes for the time of day, moved. Only the store's time may decide."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from types import ModuleType
from typing import Any

_offset = timedelta(0)


def shift(by: timedelta) -> None:
    """From now on the wall clock is off by so much in every module of Holdfast that is loaded; zero ends it.

    The monotonic clock goes on as it was, and so does all time of the rig itself. Import first what is to be
    deceived.
    """
    global _offset
    _offset = by
    for module in _deceived():
        for name, true, false in (("datetime", datetime, _Shifted), ("time", time, _time)):
            if vars(module).get(name) in (true, false):
                setattr(module, name, false if by else true)


def _deceived() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith("holdfast."):
            yield module


class _AnyDatetime(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)


class _Shifted(datetime, metaclass=_AnyDatetime):
    """Stands for `datetime`; all that it makes are plain ones."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        return datetime(*arguments, **named)  # noqa: DTZ001 - it is the caller's

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return datetime.now(tz) + _offset


def _shifted_time() -> float:
    return time.time() + _offset.total_seconds()


def _shifted_time_ns() -> int:
    return time.time_ns() + _offset // timedelta(microseconds=1) * 1000


_time = ModuleType("time")
vars(_time).update(vars(time), time=_shifted_time, time_ns=_shifted_time_ns)
