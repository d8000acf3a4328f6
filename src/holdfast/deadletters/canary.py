"""The canary: whether those that were tried first did well enough for the rest to follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from holdfast.deadletters.ids import parse_item
from holdfast.deadletters.operation import Canary, Operation
from holdfast.deadletters.service import DeadLetters
from holdfast.model.job import LIVE, JobRecord, State

Fate = Literal["succeeded", "failed", "waits"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a canary."""

    over: bool
    passed: bool
    why: str


def fate(record: JobRecord | None) -> Fate:
    """What became of a job that was made ready again."""
    if record is None:
        return "failed"
    if record.state in LIVE:
        return "waits"
    return "succeeded" if record.state is State.DONE else "failed"


def judge(canary: Canary, fates: Sequence[Fate], late: bool) -> Verdict:
    """Go on, stop, or wait. What has not ended in time is no success."""
    count, total = Counter(fates), len(fates)
    if count["waits"] and not late:
        return Verdict(over=False, passed=False, why="")
    share = count["succeeded"] / total
    why = f"{count['succeeded']} of {total} in the canary succeeded, {canary.share:.0%} were asked for"
    if count["waits"]:
        why += f"; {count['waits']} had not ended in time, so see whether anybody works for this consumer"
    return Verdict(over=True, passed=share >= canary.share, why=why)


async def look(letters: DeadLetters, operation: Operation, now: datetime) -> Verdict:
    """The verdict as things stand."""
    canary = operation.request.options.canary or Canary(0)
    fates = []
    for each in operation.stand.trying:
        item = parse_item(each)
        store = await letters.store(item.partition)
        fates.append(fate(await store.job(item.channel, item.consumer, item.local)))
    tried = operation.stand.tried or now
    return judge(canary, fates, late=now - tried >= canary.patience)
