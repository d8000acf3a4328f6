"""The catalog: the worlds, and the defects that each of them must find."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from holdfast.model.errors import InvalidInput
from holdfast_chaos.simulation.jobs import world as of_jobs
from holdfast_chaos.simulation.jobs.world import Jobs
from holdfast_chaos.simulation.retention import world as of_retention
from holdfast_chaos.simulation.retention.world import Logs
from holdfast_chaos.simulation.retention.world import RetentionParts as LogParts
from holdfast_chaos.simulation.world import Build

WORLDS = ("jobs", "retention", "wal")


class Defect(NamedTuple):
    """A world with one guard left out."""

    world: str
    build: Build
    what: str


def world(name: str) -> Build:
    """The world of that name."""
    match name:
        case "jobs":
            return Jobs
        case "retention":
            return Logs
        case "wal":
            from holdfast_chaos.simulation.wal.world import WriteAhead  # pyarrow is an extra

            return WriteAhead
        case _:
            raise InvalidInput(f"there is no world {name!r}; the worlds are {', '.join(WORLDS)}")


def defects() -> dict[str, Defect]:
    """Every defect, by name."""
    jobs = {
        "unfenced": of_jobs.UnfencedStore,
        "costly-expiry": of_jobs.CostlyExpiry,
        "early-verdict": of_jobs.EarlyVerdict,
        "one-look": of_jobs.OneLook,
        "forgotten-ids": of_jobs.ForgetfulStore,
        "overtaking": of_jobs.Overtaking,
        "miscounting": of_jobs.Miscounting,
        "queued-is-stuck": of_jobs.QueuedIsStuck,
    }
    stores = {
        "fastest-reader": of_retention.FastestReader,
        "unfinished-is-old": of_retention.NobodyWorks,
        "dead-is-done": of_retention.DeadIsDone,
        "tokenless-lock": of_retention.TokenlessLock,
    }
    readers = {"cursor-before-sink": of_retention.LogCursorFirst}
    return (
        {name: _defect("jobs", partial(Jobs, store=it), it) for name, it in jobs.items()}
        | {name: _defect("retention", partial(Logs, parts=LogParts(it)), it) for name, it in stores.items()}
        | {
            name: _defect("retention", partial(Logs, parts=LogParts(reader=it)), it)
            for name, it in readers.items()
        }
        | _of_wal()
    )


def defect(name: str) -> Defect:
    """The defect of that name."""
    known = defects()
    if name not in known:
        raise InvalidInput(f"there is no defect {name!r}; the defects are {', '.join(known)}")
    return known[name]


def _of_wal() -> dict[str, Defect]:
    from holdfast_chaos.simulation.wal import world as of_wal  # pyarrow is an extra
    from holdfast_chaos.simulation.wal.actors import Parts
    from holdfast_chaos.simulation.wal.world import WriteAhead

    parts: dict[str, tuple[Parts, object]] = {
        "cursor-before-pending": (Parts(committer=of_wal.WalCursorFirst), of_wal.WalCursorFirst),
        "confirm-before-commit": (Parts(loader=of_wal.ConfirmFirst), of_wal.ConfirmFirst),
        "silent-expiry": (Parts(loader=of_wal.SilentExpiry), of_wal.SilentExpiry),
        "torn-load": (Parts(warehouse=of_wal.TornLoad), of_wal.TornLoad),
        "swallowed-rivals": (Parts(warehouse=of_wal.RivalsAreDuplicates), of_wal.RivalsAreDuplicates),
        "clean-unconfirmed": (Parts(clean=of_wal.clean_by_age), of_wal.clean_by_age),
        "counted-ids": (Parts(restage=of_wal.number_rows), of_wal.number_rows),
    }
    return {name: _defect("wal", partial(WriteAhead, parts=part), of) for name, (part, of) in parts.items()}


def _defect(name: str, build: Build, part: object) -> Defect:
    return Defect(name, build, part.__doc__ or "")
