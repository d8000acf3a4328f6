"""The checks: read the histories and the final state of the store, and name every broken invariant.

They trust neither alone. The histories say what was asked and what was answered; the store says what there
is; where the rig has a witness in the store, that one says what moved when and under which token.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from holdfast_chaos import Violation
from holdfast_chaos.checks import faultless, jobs, locks, log, stalls
from holdfast_chaos.checks.timeline import Timeline
from holdfast_chaos.final_state import FinalState
from holdfast_chaos.history import Call

__all__ = ["Violation", "check_faultless", "check_history"]


def check_history(calls: list[Call], store: FinalState, *, drained: bool = True) -> list[Violation]:
    """Return every violation. `drained`: faults have healed, workers had their time, nothing may be left."""
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
        _named("I13", log.overtaken(calls, store)),
        _named("I14", log.passed(calls, store)),
        _named("I15", jobs.left(store) if drained else iter(())),
        _named("I16", locks.trespassed(calls)),
        _named("I17", jobs.overfull(calls, store)),
    ]
    return list(chain.from_iterable(found))


def check_faultless(calls: list[Call], store: FinalState) -> list[Violation]:
    """Return violations of what must hold besides if no process was killed, stopped or cut off."""
    timeline = Timeline(calls)
    spared = faultless.lapsed(calls, store, timeline)
    found = [
        _named("I18", faultless.redelivered(calls, store, spared), faultless.lost(calls, store, spared)),
        _named("I18", faultless.abandoned(calls, store, spared), faultless.unheld(calls, store)),
        _named("I19", stalls.stalled(stalls.waits(calls, store, timeline))),
        _named("I20", faultless.raised(calls, timeline), faultless.logged(calls, timeline)),
    ]
    return list(chain.from_iterable(found))


def _named(invariant: str, *messages: Iterator[str]) -> Iterator[Violation]:
    return (Violation(invariant, message) for message in chain(*messages))
