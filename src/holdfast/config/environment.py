"""The environment over the file: `HOLDFAST_SWEEPER__INTERVAL=10s` is `sweeper: {interval: 10s}`.

The WAL has a second name for each variable, `CONSUMER_WAL_RETRY_BACKOFF`, which goes over the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from holdfast.config.config import Config
from holdfast.config.ingest import WalKnobs
from holdfast.config.problems import Origin, Path, Problem
from holdfast.config.urls import mask

PREFIX, BETWEEN = "HOLDFAST_", "__"
WAL_PREFIX = "CONSUMER_WAL_"
_WAL = {WAL_PREFIX + name.upper(): name for name in WalKnobs.model_fields}
# What the WAL of a BadgerDB was set up with, and what takes its place.
_REPLACED = {
    "SYNC_WRITES": "every write is synced before it is acknowledged, whatever this says",
    "MEMTABLE_SIZE": "there is no memtable; ingest.batch_rows (HOLDFAST_INGEST__BATCH_ROWS) bounds a segment",
    "VLOG_SIZE": "there is no value log; ingest.wal.max_bytes (CONSUMER_WAL_MAX_BYTES) bounds the WAL",
    "NUM_COMPACTORS": "one thread of the driver compacts (ingest.compaction); ingest.wal.confirmed_retention "
    "(CONSUMER_WAL_CONFIRMED_RETENTION) says when a loaded batch is removed",
    "COMPRESSION": "segments are always compressed, with zstd",
}
Variable = tuple[Origin, dict[str, Any]]
_DEEPEST = 50
_LONGEST_VALUE = 80


class _Shape(Config, BaseSettings):
    """The configuration as pydantic-settings knows it: which variables there are, and which hold JSON."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter=BETWEEN)


class _OneVariable(EnvSettingsSource):
    """Reads one variable at a time, so that each problem can name its own."""

    def __init__(self, name: str, value: str) -> None:
        self._given = {name.lower(): value}
        super().__init__(_Shape)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._given


def variables(environ: Mapping[str, str]) -> Iterator[Variable | Problem]:
    """What each of our variables says; one with JSON for a whole section comes before those for its keys."""
    names = [name for name, value in environ.items() if name.upper().startswith(PREFIX) and value]
    for name in sorted(names, key=lambda each: (each.count(BETWEEN), each)):
        path: Path = tuple(name[len(PREFIX) :].lower().split(BETWEEN))
        origin = Origin("environment", name)
        if path[0] in Config.model_fields:
            yield _read(origin, path, environ[name])
        elif len(path) > 1:  # other variables of ours have no two underscores
            known = ", ".join(Config.model_fields)
            yield Problem(origin, path, f"there is no section {path[0]!r}; use one of {known}")

    yield from (
        (Origin("environment", name), {"ingest": {"wal": {_WAL[name]: environ[name]}}})
        for name in _WAL
        if environ.get(name)
    )


def without_meaning(environ: Mapping[str, str]) -> dict[str, str]:
    """The WAL's variables that change nothing here, each with what to use instead."""
    names = [name for name in environ if name.startswith(WAL_PREFIX) and name not in _WAL]
    known = f"there is no such setting; use one of {', '.join(_WAL)}"
    return {name: _REPLACED.get(name.removeprefix(WAL_PREFIX), known) for name in sorted(names)}


def _read(origin: Origin, path: Path, value: str) -> Variable | Problem:
    try:
        found = _OneVariable(origin.name, value)()
    except SettingsError as error:
        shown = mask(repr(value))[:_LONGEST_VALUE]
        return Problem(origin, path, f"{shown} is not the JSON that is needed here: {error.__cause__}")
    except RecursionError:
        found = None
    if found is None or _deeper(found, _DEEPEST):
        return Problem(origin, path, f"its JSON nests deeper than {_DEEPEST} levels; flatten it")
    return origin, found


def _deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(each, levels - 1) for each in inside)
