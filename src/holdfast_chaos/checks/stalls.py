"""Checks of stalls: without a fault, a ready job starts within two seconds where a worker is idle (I19).

Checked in the store's time, from the histories alone. A job waits from the moment when whoever made it ready
was told so, or from its due time, until a worker has it; where keys are ordered, not before the last one
before it has ended. A worker has room while each of its claims brings less than it asked for; so also while
it holds nothing and does not ask at all. Both at once for two seconds, without a pause or a change of the
consumer and without a standstill of the machine, is a stall. Whatever is not certain counts in favour of
the store.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast_chaos.checks.timeline import Span, Timeline
from holdfast_chaos.final_state import FinalState, Key, Owner
from holdfast_chaos.history import Call, Item, of

LIMIT = 2.0
_AT_ONCE = 100
"""More calls than can end jobs of one key at the same time."""
_SILENCE = 1.0
"""Seconds without a claim after which whoever holds a job is taken to be busy with it."""


class JobWait(NamedTuple):
    """A job that waited beside an idle worker."""

    seconds: float
    job: Key
    worker: str
    since: float


@dataclass(slots=True)
class _Life:
    """What is known of one job, in the store's time."""

    event: str
    key: str | None
    position: str
    ready: list[Span] = field(default_factory=list)
    """When that was asked for which made it ready, and from when on it was certainly so."""
    stopped: list[Span] = field(default_factory=list)
    """A worker had it, or something else was done to it: from when on that was possible, and certain."""
    ends: list[Span] = field(default_factory=list)
    """When its end was asked for, and when it was certain."""

    def waits(self) -> Iterator[Span]:
        """From each time at which it became ready to the next thing that happened to it."""
        for asked, since in self.ready:
            yield since, min((first for first, certain in self.stopped if certain > asked), default=math.inf)


def stalled(waits: Iterable[JobWait]) -> Iterator[str]:
    for wait in waits:
        if wait.seconds > LIMIT:
            yield f"job {wait.job} waited for {wait.seconds:.1f} s while {wait.worker} was idle"


def waits(calls: list[Call], store: FinalState, timeline: Timeline) -> list[JobWait]:
    """For each job its longest wait beside an idle worker, the longest of all first."""
    found: list[JobWait] = []
    lives = _lives(calls, store, timeline)
    idle = _idle(calls, timeline)
    for owner, jobs in lives.items():
        terms = store.terms[owner]
        spans = sorted(
            (span, worker) for (who, worker), each in idle.items() if who == owner for span in each
        )
        longest = max((end - start for (start, end), _ in spans), default=0.0)
        for job, span in _waiting(jobs, ordered=terms.ordered):
            first = bisect_left(spans, ((span[0] - longest, -math.inf), ""))
            best = max(
                (
                    (timeline.worth((max(start, span[0]), min(end, span[1]))), worker, max(start, span[0]))
                    for (start, end), worker in _until(spans, first, span[1])
                    if end > span[0]
                ),
                default=(0.0, "", 0.0),
            )
            if best[0] > 0:
                found.append(JobWait(best[0], (*owner, job), best[1], best[2]))
    return sorted(found, reverse=True)


def _until(spans: list[tuple[Span, str]], first: int, end: float) -> Iterator[tuple[Span, str]]:
    for number in range(first, len(spans)):
        if spans[number][0][0] >= end:
            return
        yield spans[number]


def _waiting(jobs: dict[str, _Life], *, ordered: bool) -> Iterator[tuple[str, Span]]:
    """Each wait of each job, in the order of the log."""
    orders: dict[str | None, _KeyOrder] = defaultdict(_KeyOrder)
    for job, life in sorted(jobs.items(), key=lambda each: each[1].position):
        order = orders[life.key] if ordered and life.key is not None else _KeyOrder()
        for began, stopped in life.waits():
            if began < stopped and (first := order.free(began, stopped)) < stopped:
                yield job, (first, stopped)
        order.add(life)


class _KeyOrder:
    """The ends of all jobs of a key so far, where they are ordered."""

    def __init__(self) -> None:
        self._ends: list[Span] = []
        self._live = -math.inf

    def add(self, life: _Life) -> None:
        for end in life.ends:
            insort(self._ends, end)
        self._live = max(self._live, min((asked for asked, _ in life.ends), default=math.inf))

    def free(self, began: float, stopped: float) -> float:
        """From when on, of a wait, all jobs before have certainly ended."""
        if self._live >= stopped:  # one of them was live for all of it
            return math.inf
        last = bisect_left(self._ends, (stopped, math.inf))
        return max([began, *(end for _, end in self._ends[max(last - _AT_ONCE, 0) : last])])


def _lives(calls: list[Call], store: FinalState, timeline: Timeline) -> dict[Owner, dict[str, _Life]]:
    """The jobs that were published while their consumer was there, of every consumer that still is."""
    since: dict[Owner, float] = dict.fromkeys(store.terms, math.inf)
    for call in of(calls, "subscribe"):
        for owner in map(_owner, call.items):
            if owner in since:
                since[owner] = min(since[owner], call.ended)
    found: dict[Owner, dict[str, _Life]] = {owner: {} for owner in since}
    named: dict[tuple[str, str], str] = {}
    for call in of(calls, "publish"):
        due = call.about.get("due")
        for item, receipt in call.told():
            job = store.job_at(receipt["position"])
            named[item["channel"], item["id"]] = job
            for owner in (each for each in found if each[0] == item["channel"] and since[each] < call.at):
                life = _Life(item["id"], item["key"], receipt["position"])
                moment = max(timeline.time(call.ended), timeline.parsed(due))
                life.ready.append((timeline.time(call.at), moment))
                found[owner].setdefault(job, life)
    for call in calls:
        _note(call, found, named, timeline)
    return found


def _note(
    call: Call,
    lives: dict[Owner, dict[str, _Life]],
    named: dict[tuple[str, str], str],
    timeline: Timeline,
) -> None:
    asked, answered = timeline.time(call.at), timeline.time(call.ended or call.at)

    def of_item(item: Item) -> Iterator[_Life]:
        job = item.get("job") or named.get((item["channel"], item["id"]), "")
        for owner in (
            [_owner(item)] if item["consumer"] else [each for each in lives if each[0] == item["channel"]]
        ):
            if life := lives.get(owner, {}).get(job):
                yield life

    match call.verb:
        case "claim":
            for life in (life for item in call.answers for life in of_item(item)):
                life.stopped.append((answered, answered))
        case "complete" | "bury":
            for life in (life for item in call.items for life in of_item(item)):
                life.ends.append((asked, answered))
        case "retry":
            for item in (item for item, yes in call.told() if yes):
                for life in of_item(item):
                    life.ready.append((asked, answered + item["delay"]))
        case "requeue" | "revive":
            for item, yes in call.told() or [(each, False) for each in call.items]:
                for life in of_item(item):
                    life.stopped.append((asked, asked))
                    life.ready += [(asked, answered)] * bool(yes)
        case "cancel":
            for item in (item for item, count in call.told() if count):
                for life in of_item(item):  # for all consumers, perhaps of some of them only
                    life.stopped.append((asked, answered))
                    life.ends.append((asked, answered))
        case "empty":
            # Perhaps of these, perhaps of others: nobody is said to wait for them or behind them.
            for item in (item for item, count in call.told() or [(each, 1) for each in call.items] if count):
                for life in lives.get(_owner(item), {}).values():
                    life.stopped.append((asked, answered))


def _idle(calls: list[Call], timeline: Timeline) -> dict[tuple[Owner, str], list[Span]]:
    """By consumer and worker: when it had room, all the time."""
    claims: dict[tuple[Owner, str], list[Call]] = defaultdict(list)
    for call in of(calls, "claim"):
        if call.outcome == "ok":
            claims[(call.about["channel"], call.about["consumer"]), call.process].append(call)
    barriers = _barriers(calls, timeline)
    busy = _busy(calls)
    found: dict[tuple[Owner, str], list[Span]] = {}
    for (owner, worker), made in claims.items():
        cuts = sorted([*timeline.gaps(worker), *barriers[owner]])
        spans = _with_room(made, busy[owner, worker], timeline)
        found[owner, worker] = [part for span in spans for part in _cut(span, cuts)]
    return found


def _with_room(made: list[Call], busy: list[tuple[int, int]], timeline: Timeline) -> Iterator[Span]:
    """Broken by a claim that brought all it asked for, and by work that keeps from asking."""
    start: float | None = None
    last = 0
    for call in sorted(made, key=lambda call: call.at):
        worked = call.at - last > _SILENCE * 1e9 and any(a < call.at and b > last for a, b in busy)
        full = len(call.answers) >= call.about["limit"]
        if start is not None and (worked or full):
            yield start, timeline.time(last if worked else call.at)
            start = None
        if start is None and not full:
            start = timeline.time(call.at)
        last = call.ended
    if start is not None:
        yield start, timeline.time(last)


def _busy(calls: list[Call]) -> dict[tuple[Owner, str], list[tuple[int, int]]]:
    """By consumer and worker: from when to when it held a job."""
    taken: dict[tuple[str, Key, int], int] = {}
    found: dict[tuple[Owner, str], list[tuple[int, int]]] = defaultdict(list)
    for call in calls:
        if call.verb == "claim":
            for item in call.answers:
                taken[call.process, (*_owner(item), item["job"]), item["token"]] = call.ended
        elif call.verb in ("complete", "retry", "bury"):
            for item in call.items:
                began = taken.get((call.process, (*_owner(item), item["job"]), item["token"]))
                if began is not None:
                    found[_owner(item), call.process].append((began, call.ended or call.at))
    return found


def _barriers(calls: list[Call], timeline: Timeline) -> dict[Owner, list[Span]]:
    """By consumer: when it was paused, changed or removed, or may have been."""
    found: dict[Owner, list[Span]] = defaultdict(list)
    paused: dict[Owner, float] = {}
    for call in sorted(of(calls, "pause", "resume", "subscribe", "remove"), key=lambda call: call.at):
        asked, answered = timeline.time(call.at), timeline.time(call.ended or call.at)
        for owner in map(_owner, call.items):
            if call.verb == "pause":
                paused.setdefault(owner, asked)
            began = paused.pop(owner, asked) if call.verb == "resume" else asked
            found[owner].append((began, answered))
    for owner, began in paused.items():
        found[owner].append((began, math.inf))
    return found


def _cut(span: Span, cuts: list[Span]) -> Iterator[Span]:
    """What is left of a span without the others."""
    start, end = span
    for a, b in cuts:
        if b <= start or a >= end:
            continue
        if a > start:
            yield start, a
        start = max(start, b)
    if start < end:
        yield start, end


def _owner(item: Item) -> Owner:
    return item["channel"], item["consumer"]
