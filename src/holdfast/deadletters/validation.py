"""Validation: whether a request makes sense, before anything is looked at."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import datetime

from holdfast.deadletters.ids import KINDS, parse_item
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import ACTS, Request
from holdfast.deadletters.patching import check_patch
from holdfast.model.errors import InvalidInput

MOST_ITEMS = 1_000
_LONGEST = 200
_DIGEST = re.compile("[0-9a-f]{64}")
_REVIVING = ("requeue", "redrive", "patch")


def check_request(request: Request, now: datetime) -> Request:
    """The request as it is meant now, or `InvalidInput` that says what is wrong with it."""
    if request.filter is not None and request.filter.kinds == KINDS:
        request = replace(request, filter=replace(request.filter, kinds=("job",)))
    request = replace(request, items=tuple(dict.fromkeys(request.items)))
    if request.kind not in ACTS:
        raise InvalidInput(f"no operation {request.kind!r}; use {', '.join(ACTS)}")
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
    if request.kind == "remove_consumer":
        raise InvalidInput("remove_consumer takes a filter of channel and consumer, no items")
    for each in request.items:
        _check_kind(request, parse_item(each).kind)


def _check_filter(request: Request, wanted: Filter, now: datetime) -> None:
    if request.kind == "delete":
        raise InvalidInput("delete takes one item; use purge with a filter")
    if request.kind == "remove_consumer":
        if not wanted.where.channel or not wanted.where.consumer:
            raise InvalidInput("remove_consumer needs a channel and a consumer")
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
    """Whoever acts, as it can stand in a record."""
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
