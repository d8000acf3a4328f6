"""The check of a run: everything that it has left behind is read, counted and checked."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

from holdfast_chaos.checks import Violation, check_faultless, check_history, faultless, stalls
from holdfast_chaos.checks.timeline import Timeline
from holdfast_chaos.final_state import FinalState
from holdfast_chaos.history import Call, acknowledged, hits, of, refused
from holdfast_chaos.report import Summary
from holdfast_chaos.roles import CHANNEL
from holdfast_chaos.store_run import FaultlessRun, FaultRun

_MEMORY = 600
"""MiB that no process of the rig needs, however long it goes on."""
_LONGEST = 40
_OPERATIONS = (
    *("cancel", "empty", "requeue", "revive", "purge"),
    *("pause", "resume", "subscribe", "remove", "trim"),
)
_WORD = re.compile(r"[\w.@-]+")


async def check_run(run: FaultRun | FaultlessRun, *, pipeline: bool) -> None:
    """Complete the summary: counts, and what every check finds."""
    summary, calls, store = run.summary, run.rig.calls(), await run.rig.final_state()
    if pipeline:
        calls += _archive(run, calls, summary)
        calls += _ingest(run, calls, summary)
    summary.violations += check_history(calls, store)
    if isinstance(run, FaultlessRun):
        summary.violations += check_faultless(calls, store)
        _count_faultless(summary, calls, store)
    summary.violations += _unspooled(calls, store)
    summary.violations += _unbounded(summary)
    _count(summary, calls, store)
    summary.hits = hits(run.rig.folder)
    for each in summary.violations[:_LONGEST]:
        summary.excerpts[each.message] = list(_excerpt(each, calls))


def _count(summary: Summary, calls: list[Call], store: FinalState) -> None:
    summary.calls = Counter(f"{call.verb} {call.outcome}" for call in calls)
    summary.events = len({(item["channel"], item["id"]) for item, _ in acknowledged(calls)})
    summary.refused = len(refused(calls, "complete", "retry", "bury", "extend"))
    summary.effects = len(of(calls, "effect"))
    summary.states = Counter(row.state for row in store.rows)
    summary.trimmed = sum(number for call in of(calls, "trim") for number in call.answers)


def _count_faultless(summary: Summary, calls: list[Call], store: FinalState) -> None:
    timeline = Timeline(calls)
    summary.claims = sum(len(call.answers) for call in of(calls, "claim"))
    summary.operations = Counter(call.verb for call in of(calls, *_OPERATIONS) if call.outcome == "ok")
    summary.longest_wait = max((each.seconds for each in stalls.waits(calls, store, timeline)), default=0.0)
    summary.slow = timeline.lost
    summary.excused = timeline.lost / timeline.seconds if timeline.seconds else 0.0
    summary.spared = len(faultless.lapsed(calls, store, timeline)) + faultless.excused(calls, timeline)


def _on_channel(calls: list[Call]) -> dict[str, dict[str, str]]:
    """By position: every event of the channel that was acknowledged."""
    return {receipt["position"]: item for item, receipt in acknowledged(calls) if item["channel"] == CHANNEL}


def _archive(run: FaultRun | FaultlessRun, calls: list[Call], summary: Summary) -> list[Call]:
    """I7 and I8, from the objects. Returns what was archived, as notes of the archiver."""
    from holdfast.pipeline.archive.policy import ARCHIVER
    from holdfast_chaos.checks.pipeline import check_archive

    found = check_archive(run.processes.archive_store.opened())
    summary.archived = len(found.events)
    summary.violations += [Violation("I8", what) for what in found.wrong]
    published = {item["id"] for item in _on_channel(calls).values()}
    for name in sorted(found.missing(published)):
        summary.violations.append(Violation("I7", f"event {name} is in no object of the archive"))
    return [_noted(ARCHIVER, found.ids)]


def _ingest(run: FaultRun | FaultlessRun, calls: list[Call], summary: Summary) -> list[Call]:
    """I9 to I12, from the files of WAL and warehouse. Returns what is kept, as notes of the ingest."""
    from holdfast.pipeline.ingest.commit import CONSUMER
    from holdfast_chaos import ingest_state
    from holdfast_chaos.checks import pipeline

    found = ingest_state.read_state(run.rig.url, CHANNEL, run.processes.pipeline, "duckdb")
    summary.ingested, summary.failed = len(found.rows), found.failed.total()
    history = {
        position: pipeline.Published(item["id"], '"do":"bad"' not in item["data"].replace(" ", ""))
        for position, item in _on_channel(calls).items()
    }
    summary.violations += pipeline.check_ingest(history, found, drained=True)
    sent = {item["id"]: json.loads(item["data"])["total"] for item in _on_channel(calls).values()}
    served = ingest_state.totals(run.processes.pipeline)
    summary.violations += pipeline.falsified(sent, served)
    kept = {row.id for row in found.rows} | {history[p].id for p in found.failed if p in history}
    return [_noted(CONSUMER, kept)]


def _noted(consumer: str, ids: set[str]) -> Call:
    items = [{"channel": CHANNEL, "consumer": consumer, "id": name} for name in sorted(ids)]
    return Call("check", "archived", items, outcome="ok")


def _unspooled(calls: list[Call], store: FinalState) -> Iterator[Violation]:
    """Acknowledged by a spool, and never published."""
    arrived = {(item["channel"], item["id"]) for item, _ in acknowledged(calls)}
    arrived |= {(event.channel, event.id) for event in store.log}
    for call in of(calls, "spooled"):
        for item in call.items:
            if (item["channel"], item["id"]) not in arrived:
                yield Violation("I1", f"event {item['id']} was acknowledged by a spool and never arrived")


def _unbounded(summary: Summary) -> Iterator[Violation]:
    for role, most in summary.memory.items():
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
