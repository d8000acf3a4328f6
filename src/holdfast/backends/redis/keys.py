"""Key names: which stream is a channel's log, and every key of ours with what it holds.

Only locks and state records stand outside of our prefix, beside the streams: other clients look for them.
The names are built in `lua/shared/keys.lua` and nowhere else; this is the table for readers and for tests.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PREFIX = "{holdfast}:"
WAKE = PREFIX + "wake"
STORE = PREFIX + "store"
CHANNELS = PREFIX + "channels"
VERDICT = PREFIX + "verdict:"


class Key(NamedTuple):
    """One kind of key: its name with the variable parts in capitals, its type, and what it holds."""

    name: str
    type: str
    holds: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches every key of this kind."""
        parts = (".+" if part.isupper() else re.escape(part) for part in re.split(r"([A-Z]+)", self.name))
        return re.compile("".join(parts), re.DOTALL)


KEYS = (
    Key(STORE, "hash", "schema, epoch, run_id, lowest new token, clock offset, settings, live jobs"),
    Key(CHANNELS, "hash", "channel → when it was created"),
    Key(PREFIX + "epochs:CHANNEL", "list", "from which entry on each epoch counts"),
    Key(
        PREFIX + "log:CHANNEL", "hash", "how far the log was looked at, how much of it is gone, full, display"
    ),
    Key(PREFIX + "special:CHANNEL", "zset", "entries with a time or a priority, in log order"),
    Key(PREFIX + "repeats:CHANNEL", "zset", "other clients' entries that repeat an event, in log order"),
    Key(PREFIX + "bounded:CHANNEL", "set", "REFs of consumers with a max_depth"),
    Key(PREFIX + "chart:CHANNEL", "zset", "milestones of the log: entry, ordinal, average size"),
    Key(PREFIX + "cursors:CHANNEL", "hash", "stream consumer → when its cursor moved, and where it is"),
    Key(PREFIX + "consumers:CHANNEL", "hash", "consumer → its number REF"),
    Key(PREFIX + "consumer:REF", "hash", "policy, frontier, pause, display, revision of a consumer"),
    Key(PREFIX + "removals", "hash", "consumers that are being removed → REF"),
    Key(
        PREFIX + "counts:REF",
        "hash",
        "jobs by state, but for those that wait in the log; dead letters by reason",
    ),
    Key(PREFIX + "behind", "set", "channels with special entries that somebody has to take up"),
    Key(PREFIX + "ahead:REF", "zset", "entries beyond the frontier that were taken up one by one"),
    Key(
        PREFIX + "block:REF:BASE",
        "hash",
        "one lease of many jobs; expires some time after the last one ended",
    ),
    Key(PREFIX + "blocks:REF", "zset", "blocks by their first entry"),
    Key(PREFIX + "open:REF", "zset", "those of them with jobs that are leased"),
    Key(PREFIX + "job:REF:ID", "hash", "one job of its own; expires some time after it ended well"),
    Key(PREFIX + "ended:REF", "zset", "such jobs that ended other than dead, by that time"),
    Key(PREFIX + "ready:REF", "zset", "claimable jobs: by priority, then due time"),
    Key(PREFIX + "scheduled:REF", "zset", "scheduled jobs by due time"),
    Key(PREFIX + "lane:REF:KEY", "zset", "an ordered consumer's live jobs of one key, in log order"),
    Key(PREFIX + "live:REF", "zset", "live jobs of their own, by the entry that they need in the log"),
    Key(PREFIX + "dead:REF", "zset", "dead letters by time of death"),
    Key(PREFIX + "clusters:REF", "zset", "fingerprints by how many dead letters have it"),
    Key(PREFIX + "cluster:REF:FINGERPRINT", "zset", "its dead letters by time of death"),
    Key(PREFIX + "recount:REF", "hash", "how far a count of the dead is, and what it found; expires"),
    Key(PREFIX + "due:lease", "zset", "leased jobs and blocks by deadline"),
    Key(PREFIX + "due:schedule", "zset", "all scheduled jobs by due time"),
    Key(PREFIX + "due:expiry", "zset", "waiting jobs of their own that can expire, by that time"),
    Key(
        PREFIX + "due:head", "zset", "consumers whose events expire, by when to look at the first that waits"
    ),
    Key(PREFIX + "event:CHANNEL/N:SOURCE/ID", "string", "idempotency key: hash, epoch, entry; expires"),
    Key(PREFIX + "lock:NAME", "hash", "token, which outlives the lock, owner, until"),
    Key(PREFIX + "records", "zset", "state records of up to three words by due time"),
    Key(PREFIX + "records:PART", "zset", "longer ones, by their first three words"),
    Key(PREFIX + "parts", "set", "every PART that has some"),
    Key(VERDICT + "RANDOM", "string", "whether a batch in several parts may come in; expires"),
)


def stream(channel: str) -> str:
    """The key of a channel's log: `gbe.events.audit` is `gbe:events:audit`."""
    return channel.replace(".", ":")


def channel(stream: str) -> str:
    """The channel whose log a key is."""
    return stream.replace(":", ".")


def record(name: str) -> str:
    """The key of a state record: `gbe.state.tasks.email.t-1` is `gbe:state:tasks:email:t-1`."""
    return name.replace(".", ":")


def log(channel: str) -> str:
    """The key of what is known of a channel's log."""
    return f"{PREFIX}log:{channel}"


def epochs(channel: str) -> str:
    """The key of a channel's epochs."""
    return f"{PREFIX}epochs:{channel}"
