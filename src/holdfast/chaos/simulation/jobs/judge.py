"""The judge of jobs: keeps its own story of every job, and compares each move with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from holdfast.chaos.simulation.jobs.rows import Row
from holdfast.chaos.simulation.stage import Stage
from holdfast.model.event import Event, Receipt
from holdfast.model.job import ARROWS, Job, Reason, State
from holdfast.model.policy import Policy

Counts = Counter[tuple[str, State]]
BY_TOKEN = frozenset({"complete", "retry", "give back", "bury", "extend"})
BY_DEADLINE = frozenset({"abandon", "crash loop"})


@dataclass(slots=True)
class Story:
    """What has to be true of a job after everything that was done to it."""

    row: Row
    token: int = 0
    until: datetime | None = None
    """When its lease ends; None where nobody has one."""
    failures: int = 0
    abandonments: int = 0
    completions: int = 0


class JobJudge:
    """Is told of every move as it happens, and of what publishers and workers were answered."""

    def __init__(self, stage: Stage, policies: dict[str, Policy]) -> None:
        self._stage = stage
        self._stories: dict[tuple[str, str], Story] = {}
        self._lanes: dict[tuple[str, str], list[Row]] = defaultdict(list)
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

    def created(self, row: Row, *, ordered: bool) -> None:
        """There is a job for it."""
        self._stories[row.consumer, row.position] = Story(row)
        if ordered and row.event.key is not None:
            self._lanes[row.consumer, row.event.key].append(row)

    def claimed(self, row: Row) -> None:
        """A lease has begun."""
        story, now = self._of(row), self._stage.now
        if story.until is not None and story.until > now:
            self._violate("I6", f"{row.name} was leased again while its lease ran")
        if row.token <= story.token:
            self._violate("I5", f"{row.name} was leased under token {row.token} after {story.token}")
        if row.attempts != story.failures + 1:
            self._violate("I4", f"{row.name} is at attempt {row.attempts} after {story.failures} failures")
        if row.attempts > max(attempts for attempts, _ in self._budgets[row.consumer]):
            self._violate("I4", f"{row.name} is at attempt {row.attempts}, which is beyond its budget")
        for earlier in self._lanes.get((row.consumer, row.event.key or ""), ()):
            if earlier.position < row.position and earlier.live:
                self._violate("I13", f"{row.name} was leased before {earlier.name}, which is {earlier.state}")
        story.token, story.until = row.token, row.lease_until

    def extended(self, row: Row, token: int) -> None:
        """A lease goes on."""
        self._check_token(row, token, "extend")
        self._of(row).until = row.lease_until

    def moved(self, row: Row, before: State, verb: str, token: int) -> None:
        """A job went from one state to another: by whom it was asked, and under which token."""
        story = self._of(row)
        if row.state is not before and row.state not in ARROWS[before]:
            self._violate("I3", f"{row.name} went from {before} to {row.state}")
        if verb in BY_TOKEN or verb in BY_DEADLINE:
            self._check_token(row, token, verb)
        if verb in BY_DEADLINE and (story.until is None or story.until > self._stage.now):
            self._violate("I6", f"the lease of {row.name} was ended ({verb}) while it ran")
        self._retell(story, row, verb)
        if row.live and (row.attempts, row.abandonments) != (story.failures, story.abandonments):
            self._violate(
                "I4",
                f"{row.name} has spent {row.attempts} attempts and {row.abandonments} abandonments "
                f"after {story.failures} failures and {story.abandonments} vanished workers",
            )

    def audit(self, rows: Collection[Row], counts: Counts, consumers: Iterable[str]) -> None:
        """What has to hold at any moment: nothing is gone, and the counters are right."""
        found = Counter((row.consumer, row.state) for row in rows)
        if found != +counts:
            self._violate("I3", f"the counters say {_words(+counts)}, there are {_words(found)}")
        held = {(row.consumer, row.event.id) for row in rows}
        for consumer in consumers:
            for gone in sorted(each for each in self._acked if (consumer, each) not in held):
                self._violate("I1", f"{gone} was acked, and {consumer} has no job of it")

    def _retell(self, story: Story, row: Row, verb: str) -> None:
        match verb:
            case "complete":
                story.completions += 1
                if story.completions > 1:
                    self._violate("I4", f"{row.name} was completed {story.completions} times")
            case "retry":
                story.failures += 1
            case "abandon":
                story.abandonments += 1
            case "bury" | "crash loop":
                self._check_burial(story, row, by_lifecycle=verb == "crash loop")
            case "requeue":
                story.failures = story.abandonments = 0
                story.token = row.token
        if verb != "promote":
            story.until = None

    def _check_burial(self, story: Story, row: Row, *, by_lifecycle: bool) -> None:
        """A budget that is said to be used up has to be."""
        attempts, abandonments = (min(each) for each in zip(*self._budgets[row.consumer], strict=True))
        story.failures += not by_lifecycle
        story.abandonments += by_lifecycle
        if row.reason is Reason.MAX_ATTEMPTS and story.failures < attempts:
            self._violate("I4", f"{row.name} was given up for its attempts after {story.failures} failures")
        if row.reason is Reason.CRASH_LOOP and story.abandonments < abandonments:
            self._violate("I4", f"{row.name} was given up as a crash loop after {story.abandonments}")

    def _check_token(self, row: Row, token: int, verb: str) -> None:
        newest = self._of(row).token
        if token != newest:
            self._violate("I5", f"{verb} of {row.name} was accepted with token {token}, {newest} was issued")

    def _of(self, row: Row) -> Story:
        return self._stories[row.consumer, row.position]

    def _violate(self, invariant: str, message: str) -> None:
        self._stage.violate(invariant, message)


def _words(counts: Counts) -> str:
    return ", ".join(f"{count} {state} for {name}" for (name, state), count in sorted(counts.items()))
