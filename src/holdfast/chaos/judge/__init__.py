"""The judge: reads the histories and the final state of the store, and names every broken invariant.

It trusts neither alone. The histories say what was asked and what was answered; the store says what there
is; where the rig has a witness in the store, that one says what moved when and under which token.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from holdfast.chaos.evidence import Evidence
from holdfast.chaos.history import Call
from holdfast.chaos.judge import access, cursor, delivery, errors, jobs, locks, log, order, stalls
from holdfast.chaos.judge.timeline import Timeline


class Violation(NamedTuple):
    """A broken invariant, by its name in the list, and what broke it."""

    invariant: str
    message: str


def judge(calls: list[Call], store: Evidence, *, drained: bool = True) -> list[Violation]:
    """Every violation. `drained`: faults have healed and workers had their time, so nothing may be left."""
    found = [
        _named("I1", log.lost(calls, store), log.invented(calls, store)),
        _named("I2", log.doubled(calls, store)),
        _named("I3", jobs.miscounted(store), jobs.misplaced(store)),
        _named("I4", jobs.completed_twice(calls, store), jobs.over_budget(store)),
        _named("I5", jobs.stale(calls), jobs.outdated(calls, store)),
        _named("I5", jobs.unmoved(calls, store), jobs.fallen(store), locks.outdated(calls)),
        _named("I6", jobs.overlapping(store), jobs.overlapping_claims(calls, store)),
        _named("I6", jobs.leased_twice(calls), locks.overlapping(calls)),
        _named("I7", log.trimmed_unarchived(calls, store), log.trimmed_unfinished(calls, store)),
        _named("I13", order.overtaken(calls, store)),
        _named("I14", cursor.passed(calls, store)),
        _named("I15", jobs.left(store) if drained else iter(())),
        _named("I16", access.trespassed(calls)),
        _named("I17", jobs.overfull(calls, store)),
    ]
    return list(chain.from_iterable(found))


def judge_undisturbed(calls: list[Call], store: Evidence) -> list[Violation]:
    """What must hold besides while there is no fault at all: nobody killed, stopped or cut off."""
    timeline = Timeline(calls)
    spared = delivery.lapsed(calls, store, timeline)
    found = [
        _named("I18", delivery.redelivered(calls, store, spared), delivery.lost(calls, store, spared)),
        _named("I18", delivery.abandoned(calls, store, spared), delivery.unheld(calls, store)),
        _named("I19", stalls.stalled(stalls.waits(calls, store, timeline))),
        _named("I20", errors.raised(calls, timeline), errors.logged(calls, timeline)),
    ]
    return list(chain.from_iterable(found))


def _named(invariant: str, *messages: Iterator[str]) -> Iterator[Violation]:
    return (Violation(invariant, message) for message in chain(*messages))
