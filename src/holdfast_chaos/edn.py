"""Histories as EDN in the form that Jepsen's checkers read, so that somebody else's can judge a run.

One operation per line, `{:index 0 :time 17 :process 3 :type :invoke :f :publish :value [...]}`, in the order
of the machine's one monotonic clock. The value of an invocation is the items of the call, that of its
completion the items with their answers. A process of Jepsen has one operation at a time, and none after one
whose outcome nobody knows; ours have many, so each becomes as many as it takes, and `:node` names it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any

from holdfast_chaos.history import Call

_TYPES = {"ok": "ok", "failed": "fail", "unknown": "info"}
_KEYWORD = re.compile(r"[a-zA-Z][\w.*!?<>=+-]*\Z", re.ASCII)


class Keyword(str):
    """Text that is written as a keyword."""

    __slots__ = ()


def encode(value: Any) -> str:
    """Return a value of a history as EDN. A map's keys become keywords where they can be."""
    match value:
        case Keyword():
            return f":{value}"
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case Mapping():
            return "{" + " ".join(f"{_key(name)} {encode(each)}" for name, each in value.items()) + "}"
        case list() | tuple():
            return "[" + " ".join(map(encode, value)) + "]"
        case _:
            return json.dumps(str(value))


def _key(name: str) -> str:
    return f":{name}" if _KEYWORD.match(name) else json.dumps(name)


def operations(calls: Iterable[Call]) -> Iterator[dict[str, Any]]:
    """Return invocations and completions in order; a call without an answer has no completion."""
    steps: list[tuple[int, bool, int, Call]] = []
    for number, call in enumerate(calls):
        steps.append((call.at, False, number, call))
        if call.ended:
            steps.append((call.ended, True, number, call))
    # At the same moment what begins comes first: a checker takes both as concurrent then.
    steps.sort(key=lambda step: step[:3])
    free: defaultdict[str, list[int]] = defaultdict(list)
    numbers: dict[int, int] = {}
    processes = 0
    for index, (time, ends, number, call) in enumerate(steps):
        if not ends:
            if free[call.process]:
                numbers[number] = heappop(free[call.process])
            else:
                numbers[number], processes = processes, processes + 1
        elif call.outcome != "unknown":
            heappush(free[call.process], numbers[number])
        yield {
            "index": index,
            "time": time,
            "process": numbers[number],
            "node": call.process,
            "type": Keyword(_TYPES[call.outcome] if ends else "invoke"),
            "f": Keyword(call.verb),
            "value": _told(call) if ends else _asked(call),
        }


def _asked(call: Call) -> list[Any]:
    return [{**call.about, **item} for item in call.items]


def _told(call: Call) -> list[Any]:
    if len(call.answers) != len(call.items):  # a claim returns as many as there are
        return list(call.answers)
    return [
        {**call.about, **item, "answer": answer}
        for item, answer in zip(call.items, call.answers, strict=True)
    ]


def lines(calls: Iterable[Call]) -> Iterator[str]:
    """Return the history as EDN, one operation per line."""
    return (encode(operation) for operation in operations(calls))
