"""Names: every subject, stream and header of ours, in one place.

One stream holds everything, because an atomic batch is per stream. It captures one subject per channel, the
channel's own name, and `HF.>`, which no channel can be called since their names are lower case.

    CHANNEL                     one message per event; what a foreign client publishes there is an event too
    HF.K.HASH                   idempotency key of (channel, source, id); its event comes right after it
    HF.P                        parts of an event that is too large for one message, right before it
    HF.E.REF.SEQ                a job that has ended: its record, with state, reason and errors
    HF.F.PUBLISH                the fate of a publish of several batches: committed or aborted

    HF.S.>                      the state that every process mirrors, one message per subject:
    HF.S.registry               channels, consumers, epochs and the test kit's clock
    HF.S.cursor.REF             how far the log has become jobs for a consumer
    HF.S.job.REF.SEQ            a live job; empty for a few minutes after it has ended
    HF.S.count.REF.INSTANCE     jobs by state, as one process moved them, and `all` that are gone; summed up
    HF.S.lane.REF               raised by claims and requeues of an ordered consumer: they exclude each other
    HF.S.gate.CHANNEL           raised by publishes to a channel with a bounded consumer: they do, too
    HF.S.open.PUBLISH           a publish of several batches that is under way

    HOLDFAST.WAKE.CHANNEL       not stored: tells listeners that older work may be ready

REF is a consumer's number, SEQ the sequence of the job's event in the stream, which is also the job's id.
"""

from __future__ import annotations

import hashlib
from typing import Final

STREAM: Final = "HOLDFAST"
OURS: Final = "HF.>"
STATE: Final = "HF.S.>"
STATE_PREFIX: Final = "HF.S."
REGISTRY: Final = "HF.S.registry"
PARTS: Final = "HF.P"

# What the server understands.
EXPECT: Final = "Nats-Expected-Last-Subject-Sequence"
BATCH, BATCH_SEQUENCE, COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
ROLLUP: Final = "Nats-Rollup"
TTL: Final = "Nats-TTL"
MESSAGE_ID: Final = "Nats-Msg-Id"
SEQUENCE, SUBJECT, STAMP = "Nats-Sequence", "Nats-Subject", "Nats-Time-Stamp"
PENDING: Final = "Nats-Num-Pending"

# What an event carries: CloudEvents' attributes, and a little of ours.
CE_ID, CE_SOURCE, CE_TYPE, CE_TIME, CE_KEY = "ce-id", "ce-source", "ce-type", "ce-time", "ce-partitionkey"
HEADERS: Final = "Holdfast-Headers"
DUE: Final = "Holdfast-At"
PRIORITY: Final = "Holdfast-Priority"
PART_COUNT: Final = "Holdfast-Parts"
PUBLISH: Final = "Holdfast-Publish"


def wake(channel: str) -> str:
    return f"HOLDFAST.WAKE.{channel}"


def key(channel: str, source: str, event_id: str) -> str:
    """The idempotency key's subject. Each part has its length before it, so that they cannot run together."""
    parts = [part.encode() for part in (channel, source, event_id)]
    whole = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return f"HF.K.{hashlib.sha256(whole).hexdigest()[:40]}"


def job(ref: str, seq: int) -> str:
    return f"HF.S.job.{ref}.{seq}"


def ended(ref: str, seq: int) -> str:
    return f"HF.E.{ref}.{seq}"


def cursor(ref: str) -> str:
    return f"HF.S.cursor.{ref}"


def count(ref: str, instance: str) -> str:
    return f"HF.S.count.{ref}.{instance}"


def lane(ref: str) -> str:
    return f"HF.S.lane.{ref}"


def gate(channel: str) -> str:
    return f"HF.S.gate.{channel}"


def opened(publish: str) -> str:
    return f"HF.S.open.{publish}"


def fate(publish: str) -> str:
    return f"HF.F.{publish}"
