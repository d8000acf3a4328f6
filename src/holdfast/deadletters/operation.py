"""An operation: what somebody asked to be done with dead letters, how far it is, and how it ended; whether a
request makes sense; and the stored form."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Self, cast, get_args

import orjson

from holdfast.deadletters.items import KINDS, Filter, parse_item
from holdfast.deadletters.payloads import check_patch, exact_json
from holdfast.model.duration import format_duration, parse_duration
from holdfast.model.errors import InvalidInput
from holdfast.model.event import encode_data
from holdfast.model.scopes import ADMIN, Right, Scope, Verb
from holdfast.model.upkeep import StateRecord

OperationKind = Literal["requeue", "redrive", "patch", "purge", "delete", "remove_consumer", "empty_consumer"]
OperationState = Literal["waiting", "running", "done", "cancelled", "stopped", "failed"]
OPERATION_KINDS: tuple[OperationKind, ...] = get_args(OperationKind)
GENTLE = 10_000.0
"""Purged per second where nobody says otherwise: workers beside it hardly notice."""
ON_CONSUMERS: frozenset[OperationKind] = frozenset({"remove_consumer", "empty_consumer"})
"""Those that are about a consumer with its jobs, and not about dead letters."""
ACTIVE: frozenset[OperationState] = frozenset({"waiting", "running"})
MOST_ITEMS = 1_000
_LONGEST = 200
_DIGEST = re.compile("[0-9a-f]{64}")
_REVIVING = ("requeue", "redrive", "patch")


@dataclass(frozen=True, slots=True)
class Canary:
    """Try the first `size`, wait until they have ended, go on only above a share of successes."""

    size: int
    share: float = 0.9
    patience: timedelta = timedelta(minutes=10)
    """How long they may take; what has not ended by then counts as no success."""


@dataclass(frozen=True, slots=True)
class OperationOptions:
    """How an operation goes about it."""

    rate: float | None = None
    """At most so many per second; None: as fast as the store allows, and 10,000 for a purge."""
    canary: Canary | None = None
    only_exhausted: bool = False
    """Purge and delete only what used up all its consumer's attempts."""
    patch: tuple[dict[str, Any], ...] = ()
    """JSON Patch (RFC 6902) for the data of each event."""
    digest: str | None = None
    """Patch one item only while its data has the digest that the shown change was made from."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: a kind, and either a filter or items by their public ids.

    `remove_consumer` and `empty_consumer` take a filter of channel and consumer. An empty filter needs
    `all`. A filter that names no kinds means jobs: a message of a dead-letter channel is most often the copy
    of a job that is dead too.
    """

    kind: OperationKind
    filter: Filter | None = None
    items: tuple[str, ...] = ()
    options: OperationOptions = OperationOptions()
    all: bool = False

    @property
    def rate(self) -> float | None:
        """At most so many per second."""
        return self.options.rate or (GENTLE if self.kind == "purge" else None)

    @property
    def target(self) -> str:
        """What it is about, in a few words, without anything that a payload holds."""
        if self.items:
            return self.items[0] if len(self.items) == 1 else f"{len(self.items)} items"
        where = (self.filter or Filter()).where
        return "/".join(each for each in (where.channel, where.consumer, where.fingerprint) if each) or "all"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    looked_at: int = 0
    done: int = 0
    skipped: int = 0
    """Those that were not dead any more, not exhausted, or could not be changed; `problems` says why."""
    expected: int | None = None
    """How many there were when it was asked for."""
    exact: bool = True
    """Whether `expected` is exact; otherwise there were at least so many."""

    def plus(self, done: int, skipped: int) -> Self:
        """With so many more."""
        looked_at = self.looked_at + done + skipped
        return replace(self, looked_at=looked_at, done=self.done + done, skipped=self.skipped + skipped)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run stands, for whoever goes on with it."""

    token: int = 0
    """The fencing token of whoever runs it."""
    asked: tuple[datetime, ...] = ()
    """When it was asked for, by the clock of each partition: what died later is not meant."""
    source: str = ""
    after: str | None = None
    """What comes next begins after this place of this source."""
    pending: tuple[str, ...] = ()
    """The items that are being worked on."""
    trying: tuple[str, ...] = ()
    """The items of the canary."""
    tried: datetime | None = None
    """Since when all of the canary are on their way."""
    cleared: bool = False
    """Whether the canary is over, and the rest may go."""
    left: tuple[int, ...] = ()
    """Of each partition, how many jobs `empty_consumer` may still cancel; none before they are counted."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A durable record of something that was asked for."""

    id: str
    request: Request
    actor: str
    created_at: datetime
    state: OperationState = "waiting"
    progress: Progress = Progress()
    outcome: str = ""
    """How it ended, in words."""
    problems: tuple[str, ...] = ()
    """The first few of what went wrong."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    rights: tuple[tuple[Scope, ...], ...] = ((ADMIN,),)
    """What each of those may do who asked for it or resumed it: it does what all of them may."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint, compare=False)
    revision: int = 0

    @property
    def kind(self) -> OperationKind:
        """What is done."""
        return self.request.kind

    def asked(self, partition: int) -> datetime:
        """When it was asked for, by the clock of a partition."""
        times = self.checkpoint.asked
        return times[partition] if partition < len(times) else self.created_at

    def may(self, verb: Verb, channel: str | None, consumer: str | None = None) -> bool:
        """Whether everybody who is behind it may do that there."""
        return Right(verb, self.rights).holds(channel, consumer)

    @property
    def active(self) -> bool:
        """Whether somebody works on it, or will."""
        return self.state in ACTIVE

    def to_json(self) -> dict[str, Any]:
        """What people and programs see of it."""
        request, progress = self.request, self.progress
        return {
            "id": self.id,
            "kind": request.kind,
            "state": self.state,
            "actor": self.actor,
            "filter": None if request.filter is None else request.filter.to_json(),
            "items": list(request.items),
            "options": options_to_json(request.options),
            "progress": {name: getattr(progress, name) for name in Progress.__slots__},
            "outcome": self.outcome,
            "problems": list(self.problems),
            "created_at": _text(self.created_at),
            "started_at": _text(self.started_at),
            "ended_at": _text(self.ended_at),
        }


# whether it makes sense


def check_request(request: Request, now: datetime) -> Request:
    """The request as it is meant now, or `InvalidInput` that says what is wrong with it."""
    if request.filter is not None and request.filter.kinds == KINDS:
        request = replace(request, filter=replace(request.filter, kinds=("job",)))
    request = replace(request, items=tuple(dict.fromkeys(request.items)))
    if request.kind not in OPERATION_KINDS:
        raise InvalidInput(f"no operation {request.kind!r}; use {', '.join(OPERATION_KINDS)}")
    if (request.filter is None) == (not request.items):
        raise InvalidInput(f"{request.kind}: give either a filter or items")
    if request.items:
        _check_items(request)
    elif request.filter is not None:
        _check_filter(request, request.filter, now)
    _check_options(request)
    return request


def _check_items(request: Request) -> None:
    if len(request.items) > MOST_ITEMS:
        raise InvalidInput(f"{len(request.items)} items; name at most {MOST_ITEMS}, or use a filter")
    if request.kind == "delete" and len(request.items) > 1:
        raise InvalidInput("delete takes one item; use purge for several")
    if request.kind in ON_CONSUMERS:
        raise InvalidInput(f"{request.kind} takes a filter of channel and consumer, no items")
    for each in request.items:
        _check_kind(request, parse_item(each).kind)


def _check_filter(request: Request, wanted: Filter, now: datetime) -> None:
    if request.kind == "delete":
        raise InvalidInput("delete takes one item; use purge with a filter")
    if request.kind in ON_CONSUMERS:
        if not wanted.where.channel or not wanted.where.consumer:
            raise InvalidInput(f"{request.kind} needs a channel and a consumer")
        return
    if wanted.excludes_nothing(now) and not request.all:
        raise InvalidInput(
            f"{request.kind} with a filter that excludes nothing means every dead letter; say so with all"
        )
    if {"job", "stream"} <= set(wanted.kinds):
        raise InvalidInput("a message may be the copy of a dead job; act on jobs or on messages, not on both")
    for kind in wanted.kinds:
        _check_kind(request, kind)


def _check_kind(request: Request, kind: str) -> None:
    if request.kind in ("purge", "delete") and kind == "stream":
        raise InvalidInput(
            "messages of dead-letter channels cannot be deleted; they leave with their retention"
        )
    if kind != "job" and (
        request.kind == "patch" or request.options.canary or request.options.only_exhausted
    ):
        raise InvalidInput(f"a patch, a canary and only_exhausted are for jobs; leave {kind} out")


def check_actor(actor: str) -> str:
    """Return the name of whoever acts, or raise `InvalidInput` where a record can not hold it."""
    if not 0 < len(actor) <= _LONGEST or not actor.isprintable():
        raise InvalidInput(f"{actor!r} is nobody's name; use 1 to {_LONGEST} printable characters")
    return actor


def _check_options(request: Request) -> None:
    options, canary = request.options, request.options.canary
    if options.rate is not None and not 0 < options.rate < math.inf:
        raise InvalidInput(f"rate {options.rate} is not usable; give a number per second above 0")
    if canary is not None:
        if not 1 <= canary.size <= MOST_ITEMS:
            raise InvalidInput(f"a canary of {canary.size}; use 1 to {MOST_ITEMS}")
        if not 0 < canary.share <= 1:
            raise InvalidInput(f"share {canary.share} is not usable; use a number above 0, up to 1")
    if options.canary and request.kind not in _REVIVING:
        raise InvalidInput(f"{request.kind} has no canary; only what is tried again can succeed")
    if options.only_exhausted and request.kind not in ("purge", "delete"):
        raise InvalidInput("only_exhausted is for purge and delete")
    if bool(options.patch) != (request.kind == "patch"):
        raise InvalidInput("a patch operation needs a JSON Patch, and no other takes one")
    if options.digest is not None and not _DIGEST.fullmatch(options.digest):
        raise InvalidInput(f"digest {options.digest!r} is none; take the one that the shown change has")
    check_patch(options.patch)


# as it is stored


def fields_of(operation: Operation) -> dict[str, str]:
    """The fields, readable for whoever knows only the store."""
    request, progress = operation.request, operation.progress
    return {
        "kind": request.kind,
        "state": operation.state,
        "actor": operation.actor,
        "outcome": operation.outcome,
        "created_at": operation.created_at.isoformat(),
        "started_at": operation.started_at.isoformat() if operation.started_at else "",
        "ended_at": operation.ended_at.isoformat() if operation.ended_at else "",
        "filter": "" if request.filter is None else _dump(request.filter.to_json()),
        "items": _dump(request.items),
        "options": encode_data(options_to_json(request.options)).decode(),  # a patch has numbers of any size
        "all": "yes" if request.all else "",
        "progress": _dump({name: getattr(progress, name) for name in Progress.__slots__}),
        "problems": _dump(operation.problems),
        "rights": _dump([[astuple(scope) for scope in scopes] for scopes in operation.rights]),
        "stand": _dump({name: getattr(operation.checkpoint, name) for name in Checkpoint.__slots__}),
    }


def operation_of(record: StateRecord) -> Operation:
    """The inverse of `fields_of`."""
    fields = record.fields
    return Operation(
        id=record.key.rpartition(".")[2],
        request=_request(fields),
        actor=fields["actor"],
        created_at=datetime.fromisoformat(fields["created_at"]),
        state=cast(OperationState, fields["state"]),
        progress=Progress(**orjson.loads(fields["progress"])),
        outcome=fields["outcome"],
        problems=tuple(orjson.loads(fields["problems"])),
        started_at=_time(fields["started_at"]),
        ended_at=_time(fields["ended_at"]),
        rights=_rights(fields),
        checkpoint=_checkpoint(orjson.loads(fields["stand"])),
        revision=record.revision,
    )


def _request(fields: Mapping[str, str]) -> Request:
    return Request(
        kind=cast(OperationKind, fields["kind"]),
        filter=Filter.from_json(orjson.loads(fields["filter"])) if fields["filter"] else None,
        items=tuple(orjson.loads(fields["items"])),
        options=options_of(exact_json(fields["options"].encode())),
        all=bool(fields["all"]),
    )


def _rights(fields: Mapping[str, str]) -> tuple[tuple[Scope, ...], ...]:
    """A record of an older version has none: what it asks for was checked when it was asked for."""
    stored = orjson.loads(fields["rights"]) if "rights" in fields else [[astuple(ADMIN)]]
    return tuple(tuple(Scope(*each) for each in scopes) for scopes in stored)


def options_of(stored: Mapping[str, Any]) -> OperationOptions:
    """The inverse of `options_to_json`."""
    given = dict(stored)
    if "canary" in given:
        canary = given["canary"]
        given["canary"] = Canary(**(canary | {"patience": parse_duration(canary["patience"])}))
    return OperationOptions(**(given | {"patch": tuple(given.get("patch", ()))}))


def _checkpoint(stored: dict[str, Any]) -> Checkpoint:
    texts = {name: tuple(stored[name]) for name in ("pending", "trying")}
    asked = tuple(datetime.fromisoformat(each) for each in stored["asked"])
    left = tuple(stored.get("left", ()))  # a record of an older version has none
    return Checkpoint(**(stored | texts | {"asked": asked, "tried": _time(stored["tried"]), "left": left}))


def _dump(value: Any) -> str:
    return orjson.dumps(value).decode()


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def options_to_json(options: OperationOptions) -> dict[str, Any]:
    """Only what was asked for."""
    canary = options.canary
    shown: dict[str, Any] = {
        "rate": options.rate,
        "canary": canary
        and {"size": canary.size, "share": canary.share, "patience": format_duration(canary.patience)},
        "only_exhausted": options.only_exhausted,
        "patch": list(options.patch),
        "digest": options.digest,
    }
    return {name: value for name, value in shown.items() if value}


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
