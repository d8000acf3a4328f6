"""The checks of jobs: expect a state of every job, and compare each move with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from holdfast.model.event import Event, Receipt
from holdfast.model.job import Job, Reason
from holdfast.model.policy import Policy
from holdfast.model.states import State, Verb, follows
from holdfast_chaos.simulation.jobs.store import JobRow
from holdfast_chaos.simulation.scheduler import Scheduler

Counts = Counter[tuple[str, State]]
BY_TOKEN = frozenset({Verb.COMPLETE, Verb.RETRY, Verb.RELEASE, Verb.BURY, Verb.EXTEND})
BY_DEADLINE = frozenset({Verb.ABANDON, Verb.CRASH_LOOP})


@dataclass(slots=True)
class ExpectedJob:
    """What has to be true of a job after everything that was done to it."""

    row: JobRow
    token: int = 0
    until: datetime | None = None
    """When its lease ends; None where nobody has one."""
    failures: int = 0
    abandonments: int = 0
    completions: int = 0


class JobChecks:
    """Is told of every move as it happens, and of what publishers and workers were answered."""

    def __init__(self, scheduler: Scheduler, policies: dict[str, Policy]) -> None:
        self._scheduler = scheduler
        self._expected: dict[tuple[str, str], ExpectedJob] = {}
        self._by_key: dict[tuple[str, str], list[JobRow]] = defaultdict(list)
        self._attempted: dict[str, set[bytes]] = defaultdict(set)
        self._logged: dict[str, tuple[bytes, str]] = {}
        self._acked: set[str] = set()
        self._budgets = {
            name: [(each.max_attempts, each.max_abandonments)] for name, each in policies.items()
        }

    # told by publishers, workers and the operator

    def attempted(self, event: Event) -> None:
        """Somebody is about to publish it."""
        self._attempted[event.id].add(event.data)

    def acked(self, event: Event, receipt: Receipt) -> None:
        """Somebody was told that it is durable."""
        known = self._logged.get(event.id)
        if known != (event.data, receipt.position):
            self._violate("I2", f"the ack of {event.id} names {receipt.position}, the log has {known}")
        self._acked.add(event.id)

    def seen(self, job: Job) -> None:
        """A worker has it before it."""
        if job.event.data not in self._attempted[job.event.id]:
            self._violate("I1", f"{job.consumer} got {job.event.id}, which nobody published so")

    def policy_changed(self, consumer: str, policy: Policy) -> None:
        """The budgets are others from now on."""
        self._budgets[consumer].append((policy.max_attempts, policy.max_abandonments))

    # told by the store

    def logged(self, event: Event, position: str) -> None:
        """It stands in the log."""
        if event.id in self._logged:
            self._violate("I2", f"{event.id} stands in the log twice")
        self._logged[event.id] = (event.data, position)

    def created(self, row: JobRow, *, ordered: bool) -> None:
        """There is a job for it."""
        self._expected[row.consumer, row.position] = ExpectedJob(row)
        if ordered and row.event.key is not None:
            self._by_key[row.consumer, row.event.key].append(row)

    def claimed(self, row: JobRow) -> None:
        """A lease has begun."""
        expected, now = self._of(row), self._scheduler.now
        if expected.until is not None and expected.until > now:
            self._violate("I6", f"{row.name} was leased again while its lease ran")
        if row.token <= expected.token:
            self._violate("I5", f"{row.name} was leased under token {row.token} after {expected.token}")
        if row.attempts != expected.failures + 1:
            self._violate("I4", f"{row.name} is at attempt {row.attempts} after {expected.failures} failures")
        if row.attempts > max(attempts for attempts, _ in self._budgets[row.consumer]):
            self._violate("I4", f"{row.name} is at attempt {row.attempts}, which is beyond its budget")
        for earlier in self._by_key.get((row.consumer, row.event.key or ""), ()):
            if earlier.position < row.position and earlier.live:
                self._violate("I13", f"{row.name} was leased before {earlier.name}, which is {earlier.state}")
        expected.token, expected.until = row.token, row.lease_until

    def extended(self, row: JobRow, token: int) -> None:
        """A lease goes on."""
        self._check_token(row, token, "extend")
        self._of(row).until = row.lease_until

    def moved(
        self, row: JobRow, before: State, verb: Verb, token: int, *, failed: bool, discards: bool
    ) -> None:
        """A job went from one state to another: by whom it was asked, and under which token."""
        expected = self._of(row)
        if follows(before, verb, discards=discards) is not row.state:
            self._violate("I3", f"{row.name} went from {before} to {row.state} by {verb}")
        if verb in BY_TOKEN or verb in BY_DEADLINE:
            self._check_token(row, token, verb)
        if verb in BY_DEADLINE and (expected.until is None or expected.until > self._scheduler.now):
            self._violate("I6", f"the lease of {row.name} was ended ({verb}) while it ran")
        self._expect(expected, row, verb, failed=failed)
        if row.live and (row.attempts, row.abandonments) != (expected.failures, expected.abandonments):
            self._violate(
                "I4",
                f"{row.name} has spent {row.attempts} attempts and {row.abandonments} abandonments "
                f"after {expected.failures} failures and {expected.abandonments} vanished workers",
            )

    def audit(self, rows: Collection[JobRow], counts: Counts, consumers: Iterable[str]) -> None:
        """What has to hold at any moment: nothing is gone, and the counters are right."""
        found = Counter((row.consumer, row.state) for row in rows)
        if found != +counts:
            self._violate("I3", f"the counters say {_words(+counts)}, there are {_words(found)}")
        held = {(row.consumer, row.event.id) for row in rows}
        for consumer in consumers:
            for gone in sorted(each for each in self._acked if (consumer, each) not in held):
                self._violate("I1", f"{gone} was acked, and {consumer} has no job of it")

    def _expect(self, expected: ExpectedJob, row: JobRow, verb: Verb, *, failed: bool) -> None:
        match verb:
            case Verb.COMPLETE:
                expected.completions += 1
                if expected.completions > 1:
                    self._violate("I4", f"{row.name} was completed {expected.completions} times")
            case Verb.RETRY | Verb.RELEASE:
                expected.failures += failed
            case Verb.ABANDON:
                expected.abandonments += 1
            case Verb.BURY | Verb.CRASH_LOOP:
                self._check_burial(expected, row, by_lifecycle=verb is Verb.CRASH_LOOP)
            case Verb.REQUEUE:
                expected.failures = expected.abandonments = 0
                expected.token = row.token
        if verb is not Verb.PROMOTE:
            expected.until = None

    def _check_burial(self, expected: ExpectedJob, row: JobRow, *, by_lifecycle: bool) -> None:
        """A budget that is said to be used up has to be."""
        attempts, abandonments = (min(each) for each in zip(*self._budgets[row.consumer], strict=True))
        expected.failures += not by_lifecycle
        expected.abandonments += by_lifecycle
        if row.reason is Reason.MAX_ATTEMPTS and expected.failures < attempts:
            self._violate(
                "I4", f"{row.name} was given up for its attempts after {expected.failures} failures"
            )
        if row.reason is Reason.CRASH_LOOP and expected.abandonments < abandonments:
            self._violate("I4", f"{row.name} was given up as a crash loop after {expected.abandonments}")

    def _check_token(self, row: JobRow, token: int, verb: str) -> None:
        newest = self._of(row).token
        if token != newest:
            self._violate("I5", f"{verb} of {row.name} was accepted with token {token}, {newest} was issued")

    def _of(self, row: JobRow) -> ExpectedJob:
        return self._expected[row.consumer, row.position]

    def _violate(self, invariant: str, message: str) -> None:
        self._scheduler.violate(invariant, message)


def _words(counts: Counts) -> str:
    return ", ".join(f"{count} {state} for {name}" for (name, state), count in sorted(counts.items()))
