"""Names: every subject, stream and header of ours, in one place.

One stream holds everything, because an atomic batch is per stream. It captures one subject per channel, the
channel's own name, and `HF.>`, which no channel can be called since their names are lower case.

    CHANNEL                     one message per event; what a foreign client publishes there is an event too
    HF.K.HASH                   idempotency key of (channel, source, id); its event comes right after it
    HF.P.CHANNEL                parts of an event that is too large for one message, right before it
    HF.E.REF.SEQ                a job that has ended, other than dead: its record, with state and errors
    HF.D.REF.SEQ                a dead letter: its record, with reason and errors
    HF.I.REF.REASON.PRINT.SEQ   the index of dead letters, right behind the record: when it died; PRINT is the
                                fingerprint. Empty for a second after it left the dead
    HF.H.REF                    empty: carries the check of an ordered consumer's claims against its lane
    HF.Q.REF                    jobs that left dead in one step, for a few minutes: a recount may be under way
    HF.B.HASH.REF.SEQ           a dead letter's own copy of its event, its parts before it; HASH is as in HF.K
    HF.R.REF.SEQ.TOKEN          the event with other data, its parts before it, for a job that was revived so
    HF.O.PUBLISH.CHANNEL        a publish of several batches that is under way; empty for a second at its end
    HF.F.PUBLISH.CHANNEL        the outcome of a publish of several batches: committed or aborted
    HF.A.PUBLISH.CHANNEL        where the events of an aborted publish are: from the sequence in it to its own

    HF.T.CHANNEL                up to where a channel was trimmed; written again by a new consumer
    HF.C.CONSUMER.CHANNEL       a stream consumer's cursor, with `/` for `.` in its name; empty for a second
                                when it is detached
    HF.L.NAME                   a lock, percent-encoded: its owner, its token and its deadline
    HF.G                        up to where old idempotency keys were forgotten
    HF.N                        empty, for good, in a replicated stream: only a read that finds something
                                tells up to where its server has the stream
    HF.U                        empty: somebody changes the subjects that the stream captures

    HF.X.CHANNEL                right behind an event with a time or a priority, in the same batch: such
                                events become jobs before the others
    HF.J.CHANNEL                raised by publishes to a channel with a bounded consumer: these exclude others
    HF.W.REF.LEVEL.BUCKET.TOKEN what happened to a lease, absent while nothing has: who ended and when, who
                                became a job of its own, and later deadlines. Also its history; see leases.py

    HF.S.>                      the state that processes mirror, one message per subject:
    HF.S.registry               channels, consumers, epochs and the test kit's clock
    HF.S.c.REF.frontier         how far the log was taken up for a consumer, and its open leases
    HF.S.c.REF.job.SEQ          a job of its own; empty for a few minutes after it has ended
    HF.S.c.REF.count.INSTANCE   jobs by state, and the dead by reason, as one process moved them, and `all`
                                that are gone; summed up
    HF.S.c.REF.cluster.INSTANCE.SHARD    the same for the dead by fingerprint, a sixteenth of them each
    HF.S.c.REF.lane             raised by requeues and revivals of an ordered consumer: a claim that has not
                                seen the newest is refused

    HOLDFAST.WAKE.CHANNEL       not stored: tells listeners that older work may be ready

State records are in streams of their own, which any client reads as key-value buckets:

    $KV.BUCKET.KEY              `gbe.state.tasks.email.t-1` is `tasks.email.t-1` in the bucket `gbe_state`

REF is a consumer's number, SEQ the sequence of the job's event in the stream, which is also the job's id.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Final
from urllib.parse import quote, unquote

STREAM: Final = "HOLDFAST"
OURS: Final = "HF.>"
STATE: Final = "HF.S.>"
STATE_PREFIX: Final = "HF.S."
REGISTRY: Final = "HF.S.registry"
LEASES: Final = "HF.W."
SPECIALS: Final = "HF.X."
KEYS, OUTCOMES = "HF.K.", "HF.F."
FORGOTTEN: Final = "HF.G"
UPDATING: Final = "HF.U"
PRESENT: Final = "HF.N"
REPLACED: Final = tuple(f"HF.{kind}." for kind in "KEDIOFATCLJWS")
"""Subjects of which only the newest message counts: each replaces the one before it."""
SHARDS: Final = 16

# What the server understands.
EXPECT: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECT_OF: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
BATCH, BATCH_SEQUENCE, COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
ROLLUP: Final = "Nats-Rollup"
TTL: Final = "Nats-TTL"
MESSAGE_ID: Final = "Nats-Msg-Id"
SEQUENCE, SUBJECT, STAMP = "Nats-Sequence", "Nats-Subject", "Nats-Time-Stamp"
PENDING: Final = "Nats-Num-Pending"
UP_TO: Final = "Nats-UpTo-Sequence"
HELD, LAST_SEQUENCE = "Nats-Stream", "Nats-Last-Sequence"

# What an event carries: CloudEvents' attributes, and a little of ours.
CE_ID, CE_SOURCE, CE_TYPE, CE_TIME, CE_KEY = "ce-id", "ce-source", "ce-type", "ce-time", "ce-partitionkey"
HEADERS: Final = "Holdfast-Headers"
DUE: Final = "Holdfast-At"
PRIORITY: Final = "Holdfast-Priority"
PART_COUNT: Final = "Holdfast-Parts"
PUBLISH: Final = "Holdfast-Publish"
PUBLISH_NAME: Final = "[0-9a-f]{16}"
OF_THE_SERVER_AND_OURS: Final = frozenset(
    {CE_ID, CE_SOURCE, CE_TYPE, CE_TIME, CE_KEY, DUE, PRIORITY, PART_COUNT, PUBLISH, BATCH, BATCH_SEQUENCE}
    | {COMMIT, MESSAGE_ID, SEQUENCE, SUBJECT, STAMP, PENDING, HELD, LAST_SEQUENCE, EXPECT, ROLLUP, TTL}
)
"""What is no header of an event's own."""

# What a state record carries besides its fields.
RECORD_KEY, RECORD_DUE = "Holdfast-Key", "Holdfast-Due"


def wake(channel: str) -> str:
    return f"HOLDFAST.WAKE.{channel}"


def key(channel: str, source: str, event_id: str) -> str:
    """Return an idempotency key's subject. Each part has its length before it, so that none run together."""
    parts = [part.encode() for part in (channel, source, event_id)]
    whole = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return f"HF.K.{hashlib.sha256(whole).hexdigest()[:40]}"


def state_of(ref: str) -> str:
    """Return everything that is mirrored of a consumer."""
    return f"HF.S.c.{ref}.>"


def frontier(ref: str) -> str:
    return f"HF.S.c.{ref}.frontier"


def job(ref: str, seq: int | str) -> str:
    return f"HF.S.c.{ref}.job.{seq}"


def special(channel: str) -> str:
    return f"{SPECIALS}{channel}"


def lease(ref: str, level: int, bucket: int, token: int | str) -> str:
    return f"{LEASES}{ref}.{level}.{bucket}.{token}"


def leases(ref: str) -> str:
    """Return the records of all leases of a consumer."""
    return f"{LEASES}{ref}.>"


def ended(ref: str, seq: int | str) -> str:
    return f"HF.E.{ref}.{seq}"


def dead(ref: str, seq: int | str) -> str:
    return f"HF.D.{ref}.{seq}"


def index(
    ref: str = "*", reason: str | None = None, fingerprint: str | None = None, seq: int | str = "*"
) -> str:
    """Return a dead letter's entry in the index; what is left out stands for all."""
    where = ["*" if text is None else _token(text) for text in (reason, fingerprint)]
    return f"HF.I.{ref}.{'.'.join(where)}.{seq}"


def indexed(subject: str) -> tuple[str, str, str, int]:
    """Return consumer, reason, fingerprint and event of an entry in the index."""
    _, _, ref, reason, fingerprint, seq = subject.split(".")
    return ref, _text(reason), _text(fingerprint), int(seq)


def left(ref: str) -> str:
    return f"HF.Q.{ref}"


def patch(ref: str, seq: int, token: int) -> str:
    return f"HF.R.{ref}.{seq}.{token}"


def patches(ref: str) -> str:
    """Return all events with other data of a consumer."""
    return f"HF.R.{ref}.*.*"


def copies(ref: str) -> str:
    """Return the copies of all dead letters of a consumer."""
    return f"HF.B.*.{ref}.*"


def copy(channel: str, source: str, event_id: str, ref: str = "*", seq: int | str = "*") -> str:
    """Return a dead letter's copy; without a consumer and a sequence, all copies of the event."""
    return f"HF.B.{key(channel, source, event_id).removeprefix(KEYS)}.{ref}.{seq}"


def copied(subject: str) -> int:
    """Return the sequence of the event that a copy is of."""
    return int(subject.rpartition(".")[2])


def _token(text: str) -> str:
    """Any text as one token of a subject; no other text becomes a lone percent sign."""
    return quote(text, safe="", errors="replace").replace(".", "%2E") or "%"


def _text(token: str) -> str:
    return "" if token == "%" else unquote(token)


def parts(subject: str) -> str:
    """Return where the parts of a large message are. Those of a dead letter's copy have its own subject."""
    return subject if subject.startswith("HF.") else f"HF.P.{subject}"


def trimmed(channel: str) -> str:
    return f"HF.T.{channel}"


def stream_cursor(channel: str, consumer: str) -> str:
    return f"HF.C.{consumer.replace('.', '/')}.{channel}"


def lock(name: str) -> str:
    return f"HF.L.{quote(name, safe=':').replace('.', '%2E')}"


def count(ref: str, instance: str) -> str:
    return f"HF.S.c.{ref}.count.{instance}"


def cluster(ref: str, instance: str, shard: int | str) -> str:
    return f"HF.S.c.{ref}.cluster.{instance}.{shard}"


def counter(subject: str) -> str:
    """Return the process whose counts a message has."""
    return subject.split(".")[5]


def folded(subject: str) -> str:
    """Return where its counts go when that process ends."""
    parts = subject.split(".")
    return ".".join([*parts[:5], "all", *parts[6:]])


def shard(fingerprint: str) -> int:
    """Return which of the messages with counts a fingerprint is in."""
    return zlib.crc32(fingerprint.encode()) % SHARDS


def key_order(ref: str) -> str:
    return f"HF.S.c.{ref}.lane"


def key_order_check(ref: str) -> str:
    return f"HF.H.{ref}"


def gate(channel: str) -> str:
    return f"HF.J.{channel}"


def opened(publish: str, channel: str) -> str:
    return f"HF.O.{publish}.{channel}"


def outcome(publish: str, channel: str) -> str:
    return f"HF.F.{publish}.{channel}"


def aborted(publish: str, channel: str) -> str:
    return f"HF.A.{publish}.{channel}"
