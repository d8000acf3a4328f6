"""Records of operations: from an operation to the fields of a state record, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from datetime import datetime
from typing import Any, cast

import orjson

from holdfast.deadletters.items import Filter, exact_json
from holdfast.deadletters.operation import (
    Act,
    Canary,
    Operation,
    Options,
    Progress,
    Request,
    Stand,
    State,
    options_to_json,
)
from holdfast.model.duration import parse_duration
from holdfast.model.event import encode_data
from holdfast.model.scopes import ADMIN, Scope
from holdfast.model.upkeep import Record


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
        "stand": _dump({name: getattr(operation.stand, name) for name in Stand.__slots__}),
    }


def operation_of(record: Record) -> Operation:
    """The inverse of `fields_of`."""
    fields = record.fields
    return Operation(
        id=record.key.rpartition(".")[2],
        request=_request(fields),
        actor=fields["actor"],
        created_at=datetime.fromisoformat(fields["created_at"]),
        state=cast(State, fields["state"]),
        progress=Progress(**orjson.loads(fields["progress"])),
        outcome=fields["outcome"],
        problems=tuple(orjson.loads(fields["problems"])),
        started_at=_time(fields["started_at"]),
        ended_at=_time(fields["ended_at"]),
        rights=_rights(fields),
        stand=_stand(orjson.loads(fields["stand"])),
        revision=record.revision,
    )


def _request(fields: Mapping[str, str]) -> Request:
    return Request(
        kind=cast(Act, fields["kind"]),
        filter=Filter.from_json(orjson.loads(fields["filter"])) if fields["filter"] else None,
        items=tuple(orjson.loads(fields["items"])),
        options=options_of(exact_json(fields["options"].encode())),
        all=bool(fields["all"]),
    )


def _rights(fields: Mapping[str, str]) -> tuple[tuple[Scope, ...], ...]:
    """A record of an older version has none: what it asks for was checked when it was asked for."""
    stored = orjson.loads(fields["rights"]) if "rights" in fields else [[astuple(ADMIN)]]
    return tuple(tuple(Scope(*each) for each in scopes) for scopes in stored)


def options_of(stored: Mapping[str, Any]) -> Options:
    """The inverse of `options_to_json`."""
    given = dict(stored)
    if "canary" in given:
        canary = given["canary"]
        given["canary"] = Canary(**(canary | {"patience": parse_duration(canary["patience"])}))
    return Options(**(given | {"patch": tuple(given.get("patch", ()))}))


def _stand(stored: dict[str, Any]) -> Stand:
    texts = {name: tuple(stored[name]) for name in ("pending", "trying")}
    asked = tuple(datetime.fromisoformat(each) for each in stored["asked"])
    return Stand(**(stored | texts | {"asked": asked, "tried": _time(stored["tried"])}))


def _dump(value: Any) -> str:
    return orjson.dumps(value).decode()


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
