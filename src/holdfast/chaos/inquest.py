"""The inquest: everything that a siege has left behind is read, counted and judged."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

from holdfast.chaos import coverage
from holdfast.chaos.account import Account
from holdfast.chaos.evidence import Evidence
from holdfast.chaos.history import Call, of, refused
from holdfast.chaos.judge import Violation, delivery, errors, judge, judge_undisturbed, stalls
from holdfast.chaos.judge.timeline import Timeline
from holdfast.chaos.roles import CHANNEL
from holdfast.chaos.siege import Siege
from holdfast.chaos.undisturbed import Undisturbed

_MEMORY = 600
"""MiB that no process of the rig needs, however long it goes on."""
_LONGEST = 40
_OPERATIONS = ("cancel", "requeue", "revive", "purge", "pause", "resume", "subscribe", "remove", "trim")
_WORD = re.compile(r"[\w.@-]+")


async def inquire(siege: Siege | Undisturbed, *, pipeline: bool) -> None:
    """Complete the account: counts, and what every judge finds."""
    account, calls, store = siege.account, siege.rig.calls(), await siege.rig.evidence()
    if pipeline:
        calls += _archive(siege, calls, account)
        calls += _ingest(siege, calls, account)
    account.violations += judge(calls, store)
    if isinstance(siege, Undisturbed):
        account.violations += judge_undisturbed(calls, store)
        _count_undisturbed(account, calls, store)
    account.violations += _unspooled(calls, store)
    account.violations += _unbounded(account)
    _count(account, calls, store)
    account.hits = coverage.hits(siege.rig.folder)
    for each in account.violations[:_LONGEST]:
        account.excerpts[each.message] = list(_excerpt(each, calls))


def _count(account: Account, calls: list[Call], store: Evidence) -> None:
    account.calls = Counter(f"{call.verb} {call.outcome}" for call in calls)
    account.events = len({(item["channel"], item["id"]) for item, _ in _acked(calls)})
    account.refused = len(refused(calls, "complete", "retry", "bury", "extend"))
    account.effects = len(of(calls, "effect"))
    account.states = Counter(row.state for row in store.rows)
    account.trimmed = sum(number for call in of(calls, "trim") for number in call.answers)


def _count_undisturbed(account: Account, calls: list[Call], store: Evidence) -> None:
    timeline = Timeline(calls)
    account.claims = sum(len(call.answers) for call in of(calls, "claim"))
    account.operations = Counter(call.verb for call in of(calls, *_OPERATIONS) if call.outcome == "ok")
    account.longest_wait = max((each.seconds for each in stalls.waits(calls, store, timeline)), default=0.0)
    account.slow = timeline.lost
    account.excused = timeline.lost / timeline.seconds if timeline.seconds else 0.0
    account.spared = len(delivery.lapsed(calls, store, timeline)) + errors.excused(calls, timeline)


def _acked(calls: list[Call]) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    return (pair for call in of(calls, "publish") for pair in call.told())


def _on_channel(calls: list[Call]) -> dict[str, dict[str, str]]:
    """By position: every event of the channel that was acknowledged."""
    return {receipt["position"]: item for item, receipt in _acked(calls) if item["channel"] == CHANNEL}


def _archive(siege: Siege | Undisturbed, calls: list[Call], account: Account) -> list[Call]:
    """I7 and I8, from the objects; answers what was archived, as notes of the archiver."""
    from holdfast.chaos.judge.archive import audit
    from holdfast.pipeline.archive.policy import ARCHIVER

    found = audit(siege.crew.cold.opened())
    account.archived = len(found.events)
    account.violations += [Violation("I8", what) for what in found.wrong]
    published = {item["id"] for item in _on_channel(calls).values()}
    for name in sorted(found.missing(published)):
        account.violations.append(Violation("I7", f"event {name} is in no object of the archive"))
    return [_noted(ARCHIVER, found.ids)]


def _ingest(siege: Siege | Undisturbed, calls: list[Call], account: Account) -> list[Call]:
    """I9 to I12, from the files of WAL and warehouse; answers what is kept, as notes of the ingest."""
    from holdfast.chaos import evidence_ingest
    from holdfast.chaos.judge import ingest
    from holdfast.pipeline.ingest.commit import CONSUMER

    found = evidence_ingest.gather(siege.rig.url, CHANNEL, siege.crew.pipeline, "duckdb")
    account.ingested, account.failed = len(found.rows), found.failed.total()
    history = {
        position: ingest.Published(item["id"], '"do":"bad"' not in item["data"].replace(" ", ""))
        for position, item in _on_channel(calls).items()
    }
    account.violations += [Violation(*each) for each in ingest.judge(history, found, drained=True)]
    sent = {item["id"]: json.loads(item["data"])["total"] for item in _on_channel(calls).values()}
    served = evidence_ingest.totals(siege.crew.pipeline)
    account.violations += [Violation(*each) for each in ingest.falsified(sent, served)]
    kept = {row.id for row in found.rows} | {history[p].id for p in found.failed if p in history}
    return [_noted(CONSUMER, kept)]


def _noted(consumer: str, ids: set[str]) -> Call:
    items = [{"channel": CHANNEL, "consumer": consumer, "id": name} for name in sorted(ids)]
    return Call("inquest", "archived", items, outcome="ok")


def _unspooled(calls: list[Call], store: Evidence) -> Iterator[Violation]:
    """Acknowledged by a spool, and never published."""
    arrived = {(item["channel"], item["id"]) for item, _ in _acked(calls)}
    arrived |= {(event.channel, event.id) for event in store.log}
    for call in of(calls, "spooled"):
        for item in call.items:
            if (item["channel"], item["id"]) not in arrived:
                yield Violation("I1", f"event {item['id']} was acknowledged by a spool and never arrived")


def _unbounded(account: Account) -> Iterator[Violation]:
    for role, most in account.memory.items():
        if most > _MEMORY:
            yield Violation("I17", f"a process of {role} had {most} MiB")


def _excerpt(violation: Violation, calls: list[Call]) -> Iterator[str]:
    """The smallest history around it: every call that is about something that the message names."""
    words = set(_WORD.findall(violation.message))
    about = [call for call in calls if words & _names(call)]
    for call in sorted(about, key=lambda call: call.at)[-_LONGEST:]:
        items = [item for item in [*call.items, *call.answers] if isinstance(item, dict)]
        shown = [item for item in items if words & {str(item.get("id")), str(item.get("job"))}]
        told = [yes for item, yes in zip(call.items, call.answers, strict=False) if item in shown]
        answer = "" if not told else f" → {told}"
        yield f"{call.at / 1e9:.3f} {call.process} {call.verb} {call.outcome}: {_short(shown)}{answer}"


def _names(call: Call) -> set[str]:
    items = [item for item in [*call.items, *call.answers] if isinstance(item, dict)]
    return {str(item[name]) for item in items for name in ("id", "job") if name in item}


def _short(items: list[dict[str, object]]) -> str:
    kept = ("id", "consumer", "job", "token", "until")
    return "; ".join(" ".join(f"{k}={item[k]}" for k in kept if k in item) for item in items[:3])
