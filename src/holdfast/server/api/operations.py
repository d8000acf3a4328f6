"""Operations: what is to be done with dead letters, how far it is, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import Response
from orjson import Fragment
from pydantic import ConfigDict, Field

from holdfast.deadletters.operation import Canary, Operation, OperationOptions, Request
from holdfast.deadletters.operations import no_operation
from holdfast.deadletters.payloads import Change
from holdfast.model.duration import parse_duration
from holdfast.model.errors import Outdated
from holdfast.server.api.deadletters import FilterIn, ItemOut, check_filter, check_item, visible
from holdfast.server.api.models import (
    After,
    Duration,
    ItemName,
    Limit,
    Model,
    OperationId,
    Page,
    Whole,
    json_response,
)
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import OperatesFiltered, ReadsFiltered, Router
from holdfast.server.errors import Conflict
from holdfast.server.openapi import may_fail
from holdfast.server.system import Known, System

router = Router(tags=["operations"], prefix="/operations")

LIST = "operations"
"""What its cursors are for."""


class CanaryIn(Model):
    """Try the first few, and go on only if enough of them succeed."""

    size: Annotated[int, Field(ge=1, le=1000), Whole]
    share: float = Field(default=0.9, gt=0, le=1)
    patience: Duration = "10m"


_EITHER: dict[str, Any] = {
    "oneOf": [
        {"required": ["filter"], "properties": {"filter": {"type": "object"}, "items": {"maxItems": 0}}},
        {"required": ["items"], "properties": {"filter": {"type": "null"}, "items": {"minItems": 1}}},
    ]
}


class OperationIn(Model):
    """What is to be done, with which dead letters: a filter, or items."""

    model_config = ConfigDict(json_schema_extra=_EITHER)

    kind: Literal["requeue", "redrive", "patch", "purge", "delete"]
    filter: FilterIn | None = None
    items: list[ItemName] = Field(default_factory=list, max_length=1000)
    all: bool = False
    """An empty filter means everything there is, and needs this."""
    rate: float | None = Field(default=None, gt=0, le=1_000_000)
    """At most so many per second."""
    canary: CanaryIn | None = None
    only_exhausted: bool = False
    patch: list[dict[str, Any]] = Field(default_factory=list, max_length=100)
    """JSON Patch (RFC 6902), for `patch`."""
    digest: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """Patch only while the data is what the shown change was made from."""
    dry_run: bool = False
    """Only tell what would be done: 200 and a preview."""

    def request(self) -> Request:
        """What is asked for; `InvalidInput` where it makes no sense."""
        given, canary = self.canary, None
        if given is not None:
            canary = Canary(given.size, given.share, parse_duration(given.patience, what="patience"))
        return Request(
            self.kind,
            None if self.filter is None else self.filter.filter(),
            tuple(self.items),
            OperationOptions(self.rate, canary, self.only_exhausted, tuple(self.patch), self.digest),
            self.all,
        )


class OperationOut(Model):
    """A durable record of something that was asked for."""

    id: str
    kind: str
    state: Literal["waiting", "running", "done", "cancelled", "stopped", "failed"]
    actor: str
    filter: dict[str, Any] | None
    items: list[str]
    options: dict[str, Any]
    progress: dict[str, Any]
    outcome: str
    problems: list[str]
    created_at: str
    started_at: str | None
    ended_at: str | None


class ChangeOut(Model):
    """What a patch makes of one event's data."""

    item: str
    before: Any
    after: Any
    diff: str
    """Both as indented JSON, line by line."""
    digest: str


class PreviewOut(Model):
    """What an operation would do; nothing was changed."""

    count: int
    exact: bool
    sample: list[ItemOut]
    changes: list[ChangeOut]


@router.post(
    "",
    status_code=202,
    response_model=OperationOut,
    responses={200: {"model": PreviewOut, "description": "A dry run"}, **may_fail(404)},
)
async def start_operation(
    body: OperationIn, system: Known, response: Response, caller: OperatesFiltered
) -> OperationOut | Response:
    """Ask for an operation. It runs in the background, and goes on after a crash where it was."""
    request = body.request()
    await permit(system, caller, request)
    if body.dry_run:
        with system.searches.take(caller.actor):
            preview = await system.operations.preview(request, caller.scopes)
        found = {
            "count": preview.count,
            "exact": preview.exact,
            "sample": [ItemOut.of(each).model_dump() for each in preview.sample],
            "changes": [_change(each) for each in preview.changes],
        }
        return json_response(found)
    return accepted(await system.operations.ask(request, caller.actor, caller.scopes), response)


@router.get("")
async def list_operations(
    system: Known, caller: ReadsFiltered, limit: Limit = 100, after: After = None
) -> Page[OperationOut]:
    """The latest operations first. A page can be short, even empty, and have more behind it."""
    found, next_page = await listed(system, caller, limit, after)
    return Page(items=[OperationOut(**each.to_json()) for each in found], after=next_page)


@router.get("/{operation}")
async def show_operation(operation: OperationId, system: Known, caller: ReadsFiltered) -> OperationOut:
    """One operation: how far it is, and how it ended."""
    return OperationOut(**(await mine(system, caller, operation)).to_json())


@router.post("/{operation}/cancel")
async def cancel_operation(operation: OperationId, system: Known, caller: OperatesFiltered) -> OperationOut:
    """Begin nothing more; what is under way is finished."""
    await permit(system, caller, (await mine(system, caller, operation)).request)
    with _conflicts():
        return OperationOut(**(await system.operations.cancel(operation, caller.actor)).to_json())


@router.post("/{operation}/resume", status_code=202)
async def resume_operation(
    operation: OperationId, system: Known, response: Response, caller: OperatesFiltered
) -> OperationOut:
    """Let one that was cancelled, stopped or failed go on where it was, and past its canary."""
    await permit(system, caller, (await mine(system, caller, operation)).request)
    with _conflicts():
        resumed = await system.operations.resume(operation, caller.actor, caller.scopes)
        return accepted(resumed, response)


async def listed(
    system: System, caller: Caller, limit: int, after: str | None
) -> tuple[list[Operation], str | None]:
    """A page of the operations that are the caller's business, and the cursor of the next one."""
    place = await system.cursors.open(caller, LIST, after)
    size = system.config.server.limits.answer
    page = await system.operations.page(lambda each: visible(caller, each), place, limit, size)
    return page.operations, await system.cursors.seal(caller, LIST, page.after)


def accepted(operation: Operation, response: Response) -> OperationOut:
    """The response to a request that becomes an operation."""
    response.status_code = 202
    response.headers["Location"] = f"/api/v1/operations/{operation.id}"
    return OperationOut(**operation.to_json())


@contextmanager
def _conflicts() -> Iterator[None]:
    """Nobody sent a revision here: that an operation is over is a conflict, not an outdated view."""
    try:
        yield
    except Outdated as error:
        raise Conflict(str(error)) from None


async def permit(system: System, caller: Caller, request: Request) -> None:
    """Raise `Forbidden` unless the caller may act on everything that is asked for."""
    if request.filter is not None:
        check_filter(caller, "operate", request.filter)
    for item in request.items:
        await check_item(system, caller, "operate", item)


async def mine(system: System, caller: Caller, operation: str) -> Operation:
    """An operation, if it is any of the caller's business; what is not does not exist for them."""
    found = await system.operations.show(operation)
    if not visible(caller, found):
        raise no_operation(operation)
    return found


def _change(change: Change) -> dict[str, Any]:
    """As `ChangeOut` describes it; the data is handed on as it is."""
    return {
        "item": change.item,
        "before": Fragment(change.old),
        "after": Fragment(change.new),
        "diff": change.diff,
        "digest": change.digest,
    }
