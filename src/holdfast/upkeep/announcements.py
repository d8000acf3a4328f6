"""Announcements: the system events of `{namespace}.events.system.*`, each a documented schema."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.contracts import Backend
from holdfast.model.errors import IdConflict
from holdfast.model.event import Event, new_id
from holdfast.model.log import Lag

SOURCE = "holdfast"


class Announcement(BaseModel):
    """What all of them share. Consumers ignore fields that they do not know."""

    model_config = ConfigDict(frozen=True)
    topic: ClassVar[str]


class Retried(Announcement):
    """Stuck work went back to its queue: its worker vanished, and its lease ended without an answer."""

    topic: ClassVar[str] = "retry"
    channel: str = Field(description="The channel that the job's event is on.")
    consumer: str = Field(description="The worker consumer that the job belongs to.")
    event_id: str = Field(description="The event's id.")
    source: str = Field(description="The event's source.")
    worker: str | None = Field(description="Who held the lease.")
    retry_count: int = Field(
        description="How often this job was abandoned so far; for a task: how often it is run again."
    )
    max_retries: int = Field(
        description="At how many abandonments it is given up; for a task: its `max_retries`."
    )


class Alert(Announcement):
    """Something that a person should look at."""

    topic: ClassVar[str] = "error"
    kind: Literal[
        "exhausted",
        "held_back",
        "lag",
        "full",
        "dropped",
        "dead_consumer",
        "task_failed",
        "missed_ticks",
    ] = Field(description="What happened.")
    message: str = Field(description="The same in words, with what to do.")
    channel: str | None = Field(default=None, description="The channel that it is about.")
    consumer: str | None = Field(default=None, description="The consumer or foreign group that it is about.")
    event_id: str | None = Field(default=None, description="The event that it is about.")
    count: int | None = Field(default=None, description="How many events.")
    age_seconds: float | None = Field(default=None, description="How old the oldest of them is.")


class Discarded(Announcement):
    """A job died and its consumer's policy is `on_dead: discard`: there is no dead letter of it."""

    topic: ClassVar[str] = "discard"
    channel: str = Field(description="The channel that the job's event is on.")
    consumer: str = Field(description="The worker consumer that the job belonged to.")
    event_id: str = Field(description="The event's id.")
    source: str = Field(description="The event's source.")
    job: str = Field(description="The job's id.")
    reason: str = Field(description="Why it died: `max_attempts`, `crash_loop`, `expired` or `terminal`.")
    attempts: int = Field(description="How often its handler was run and answered.")
    abandonments: int = Field(description="How often its worker vanished.")
    worker: str | None = Field(description="Who held its last lease, where the store remembers it.")
    error: str = Field(description="The last error.")


class Held(BaseModel):
    """A trim that a consumer kept from going further."""

    channel: str = Field(description="The channel that could not be trimmed.")
    consumer: str = Field(description="Who still needs it.")
    events: int = Field(description="Events behind the consumer, counted up to 1,000,000.")
    age_seconds: float = Field(description="Age of the oldest of them.")


class DeadGroup(BaseModel):
    """A foreign group with pending entries that only a dead member holds."""

    channel: str = Field(description="The channel that it reads.")
    group: str = Field(description="Its name.")
    pending: int = Field(description="Entries that were delivered and not acknowledged.")
    reclaimed: int = Field(description="Entries that a living member has now.")
    removed: bool = Field(description="Whether the group was removed.")


class Swept(Announcement):
    """What one sweep of one store found and did."""

    topic: ClassVar[str] = "sweep"
    started_at: datetime = Field(description="When it began, in the store's time.")
    duration_seconds: float = Field(description="How long it took.")
    token: int = Field(description="The sweeper's fencing token.")
    dry_run: bool = Field(description="Nothing was changed; the counts are what a sweep would do.")
    retried: int = Field(description="Stuck jobs that went back to their queue.")
    buried: int = Field(description="Jobs that became dead letters: exhausted or expired.")
    promoted: int = Field(description="Scheduled jobs that became ready.")
    trimmed: dict[str, int] = Field(description="Events removed from the log, by channel.")
    held: list[Held] = Field(description="What held trimming back.")
    dropped: dict[str, int] = Field(description="Events that `on_full: drop_oldest` removed, by channel.")
    full: list[str] = Field(description="Channels that refuse publishes, being over their max_bytes.")
    forgotten_keys: int = Field(description="Idempotency keys past the dedupe window.")
    forgotten_jobs: int = Field(description="Ended jobs past the history's time.")
    purged: dict[str, int] = Field(description="Dead letters past their time, by channel/consumer.")
    groups: list[DeadGroup] = Field(description="Dead foreign consumers.")
    chores: dict[str, int] = Field(description="What further chores did, by name.")


class Archived(Announcement):
    """A batch of a channel is durable in the archive; its cursor moves to the end of it next."""

    topic: ClassVar[str] = "archive"
    stream: str = Field(description="Its domain: `audit` for `gbe.events.audit.change`.")
    channel: str = Field(description="The archived channel.")
    count: int = Field(description="Events in this batch.")
    destination: str = Field(description="Where the objects are.")
    objects: int = Field(description="How many objects the batch has.")
    first: str = Field(description="Position of the first event.")
    last: str = Field(description="Position of the last event, where the cursor goes.")


class Audited(Announcement):
    """Somebody did something to dead letters, consumers or names, or was refused it."""

    topic: ClassVar[str] = "audit"
    actor: str = Field(description="Who did it: a user of the command line, or the name of a token.")
    action: str = Field(description="What was done, such as `purge`, or the route that was refused.")
    target: str = Field(description="What it was done to.")
    filter: dict[str, str | list[str]] | None = Field(
        default=None, description="Which dead letters were meant, where there was a filter."
    )
    outcome: str = Field(description="What came of it: `asked`, how it ended, or `refused: …`.")
    operation: str | None = Field(default=None, description="The operation that it belongs to.")


ALL: tuple[type[Announcement], ...] = (Retried, Swept, Alert, Discarded, Archived, Audited)


async def announce(
    backend: Backend, namespace: str, announcement: Announcement, event_id: str | None = None
) -> None:
    """Publish it. With an id of the caller's a repeat is a duplicate, and changes nothing."""
    event = Event(
        announcement.model_dump_json().encode(),
        event_id or new_id(),
        source=SOURCE,
        type=f"{SOURCE}.{announcement.topic}",
    )
    await backend.log.publish(f"{namespace}.events.system.{announcement.topic}", [event])


async def raise_alert(backend: Backend, namespace: str, alert: Alert) -> None:
    """Publish an alert: at once, then once an hour while it lasts, whoever raises it.

    What it is about and the hour are its id: the store refuses a second one. So the sweeper and the archiver,
    which both see an archive that is behind, report it once, and a restart does not report it again.
    """
    hour = f"{await backend.now():%Y-%m-%dT%H}"
    name = ":".join([alert.kind, alert.channel or "", alert.consumer or "", alert.event_id or "", hour])
    try:
        await announce(backend, namespace, alert, name)
    except IdConflict:
        return  # published before in this hour, with other figures


def lag_alert(
    channel: str, consumer: str, lag: Lag, now: datetime, most_events: int, most_age: timedelta
) -> Alert | None:
    """Return the alert about a stream consumer's lag, or None below the thresholds."""
    age = 0.0 if lag.oldest is None else (now - lag.oldest).total_seconds()
    if lag.events <= most_events and age <= most_age.total_seconds():
        return None
    return Alert(
        kind="lag",
        message=f"{consumer} is {lag.events} events and {age:.0f} s behind on {channel}; "
        "look at its log, and give it more cores if it only lacks time",
        channel=channel,
        consumer=consumer,
        count=lag.events,
        age_seconds=age,
    )
