"""Evidence: the final state of a store, as the judge reads it, and how a kind of store gives it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.contracts import Backend
from holdfast.embedded.process import Server
from holdfast.model.event import LogEntry
from holdfast.model.job import LIVE
from holdfast.model.policy import Policy

_PAGE = 1000
Owner = tuple[str, str]
"""A channel and a consumer."""
Key = tuple[str, str, str]
"""A job: its channel, its consumer and its number."""


class Row(NamedTuple):
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
        """Whether somebody still has to do something about it."""
        return self.state in LIVE


class Logged(NamedTuple):
    """An event in the log, with the number of its jobs."""

    channel: str
    id: str
    job: str
    position: str
    data: str


class Move(NamedTuple):
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
class Evidence:
    """Everything that the store can say. Without a witness there are no moves."""

    log: list[Logged]
    rows: list[Row]
    terms: dict[Owner, Terms]
    job_at: Callable[[str], str]
    """The number of the jobs of the event at a position."""
    trimmed: dict[str, str] = field(default_factory=dict)
    """By channel: the position up to which the store says that it removed events."""
    cursors: dict[Owner, str | None] = field(default_factory=dict)
    """By stream consumer: the position up to which it is done."""
    moves: list[Move] | None = None


class Store(ABC):
    """A durable server of one kind, and the little that the rig must know of it beyond the contract."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @abstractmethod
    async def empty(self) -> str:
        """An empty store on the server; answers its URL."""

    @abstractmethod
    async def gather(self, url: str) -> Evidence:
        """Read everything."""


def terms(policy: Policy, counted: dict[str, int]) -> Terms:
    """What a policy says, with what was counted."""
    budgets = policy.max_attempts, policy.max_abandonments
    return Terms(*budgets, policy.lease, policy.ordered, policy.max_depth, counted)


async def through_the_contract(backend: Backend, job_at: Callable[[str], str]) -> Evidence:
    """What the contract's own verbs tell: all but jobs and counters, which are left empty."""
    found = Evidence([], [], {}, job_at)
    for channel in await backend.channels():
        async for entry in _entries(backend, channel):
            event, position = entry.event, entry.position
            found.log.append(Logged(channel, event.id, job_at(position), position, event.data.decode()))
        if trimmed := (await backend.extent(channel)).trimmed:
            found.trimmed[channel] = trimmed
    for each in await backend.consumers():
        await backend.find_jobs(each.channel, "rig", "nothing")  # whoever looks at jobs makes those that lack
        found.terms[each.channel, each.name] = terms(each.policy, {})
    found.cursors.update({(each.channel, each.name): each.position for each in await backend.cursors()})
    return found


async def _entries(backend: Backend, channel: str) -> AsyncIterator[LogEntry]:
    """The log from its beginning."""
    after: str | None = None
    while page := await backend.read(channel, after, _PAGE):
        for entry in page:
            yield entry
        after = page[-1].position
