"""The final state of a store, as the checks read it, and how a kind of store gives it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.contracts import Backend
from holdfast.embedded.process import Server
from holdfast.model.event import LogEntry
from holdfast.model.policy import Policy
from holdfast.model.states import LIVE

_PAGE = 1000
Owner = tuple[str, str]
"""A channel and a consumer."""
Key = tuple[str, str, str]
"""A job: its channel, its consumer and its number."""


class JobState(NamedTuple):
    """A job in one of the places where it can be. A job in two places has two rows."""

    channel: str
    consumer: str
    job: str
    state: str
    attempts: int
    abandonments: int
    token: int
    reason: str | None

    @property
    def key(self) -> Key:
        return self.channel, self.consumer, self.job

    @property
    def live(self) -> bool:
        """Whether it is not over."""
        return self.state in LIVE


class Logged(NamedTuple):
    """An event in the log, with the number of its jobs."""

    channel: str
    id: str
    job: str
    position: str
    data: str


class JobMove(NamedTuple):
    """A change of a job, from a witness in the store."""

    at: datetime
    channel: str
    consumer: str
    job: str
    before: str | None
    after: str | None
    old_token: int | None
    token: int | None
    old_lease: datetime | None
    lease: datetime | None
    abandonments: int

    @property
    def key(self) -> Key:
        return self.channel, self.consumer, self.job


class Terms(NamedTuple):
    """What a consumer's policy allows, and what its counters say: jobs by state, dead ones by `dead:REASON`.

    A store need not count every state; whatever it names is compared with a count.
    """

    max_attempts: int
    max_abandonments: int
    lease: timedelta
    ordered: bool
    max_depth: int | None
    counted: dict[str, int]


@dataclass(frozen=True, slots=True)
class FinalState:
    """Everything that is in a store. Without a witness there are no moves."""

    log: list[Logged]
    rows: list[JobState]
    terms: dict[Owner, Terms]
    job_at: Callable[[str], str]
    """The number of the jobs of the event at a position."""
    trimmed: dict[str, str] = field(default_factory=dict)
    """By channel: the position up to which the store says that it removed events."""
    cursors: dict[Owner, str | None] = field(default_factory=dict)
    """By stream consumer: the position up to which it is done."""
    moves: list[JobMove] | None = None


class ServerUnderTest(ABC):
    """A durable server of one kind, and the little that the rig must know of it beyond the contract."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @abstractmethod
    async def empty(self) -> str:
        """Make an empty store on the server. Returns its URL."""

    @abstractmethod
    async def final_state(self, url: str) -> FinalState:
        """Read everything that the store at a URL has."""


def terms(policy: Policy, counted: dict[str, int]) -> Terms:
    """What a policy says, with what was counted."""
    budgets = policy.max_attempts, policy.max_abandonments
    return Terms(*budgets, policy.lease, policy.ordered, policy.max_depth, counted)


async def contract_state(backend: Backend, job_at: Callable[[str], str]) -> FinalState:
    """What the verbs of the contract return: all but jobs and counters, which are left empty."""
    found = FinalState([], [], {}, job_at)
    for channel in await backend.channels.names():
        async for entry in _entries(backend, channel):
            event, position = entry.event, entry.position
            found.log.append(Logged(channel, event.id, job_at(position), position, event.data.decode()))
        if trimmed := (await backend.log.extent(channel)).trimmed:
            found.trimmed[channel] = trimmed
    for each in await backend.channels.consumers():
        await backend.leases.find_jobs(each.channel, "rig", "nothing")  # a read of jobs makes those that lack
        found.terms[each.channel, each.name] = terms(each.policy, {})
    found.cursors.update({(each.channel, each.name): each.position for each in await backend.cursors.all()})
    return found


async def _entries(backend: Backend, channel: str) -> AsyncIterator[LogEntry]:
    """The log from its beginning."""
    after: str | None = None
    while page := await backend.log.read(channel, after, _PAGE):
        for entry in page:
            yield entry
        after = page[-1].position
