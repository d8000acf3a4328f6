"""The composition root: from a configuration to objects. Only this module knows the concrete backends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from holdfast.bus.client import Bus
from holdfast.bus.spool import Spool
from holdfast.bus.sync import SyncBus
from holdfast.config.urls import SCHEMES, check_url, split_urls
from holdfast.contracts import Backend
from holdfast.model.errors import InvalidInput
from holdfast.upkeep.lifecycle import Health
from holdfast.upkeep.rules import DeadConsumers, Keep, Rules

if TYPE_CHECKING:  # these take longer to import than all the rest, and most programs do without
    from holdfast.config.config import Config
    from holdfast.tasks import Tasks
    from holdfast.upkeep.sweeper import Sweeper

HOME = Path(".holdfast")
PRIVATE = HOME / "postgres"
Urls = str | Sequence[str] | None
Configuration: TypeAlias = "Config | str | os.PathLike[str] | None"
Factory: TypeAlias = "Callable[[str, int, Config | None], Backend]"
"""Makes a backend for a URL, with so many connections, by a configuration if there is one."""
_FACTORIES: dict[str, Factory] = {}


def connect(
    url: Urls = None,
    *,
    config: Configuration = None,
    connections: int = 4,
    spool: str | os.PathLike[str] | None = None,
) -> Bus:
    """A bus on one store or, given several URLs, on partitions. Use it with `async with`.

    Without a URL: `HOLDFAST_URL`, then the one of the configuration (`config`, or the file that
    `HOLDFAST_CONFIG` names), then `DATABASE_URL`, then a private PostgreSQL under `.holdfast/`.

    With a `spool` folder, publish is also acknowledged while no store answers: the events are durable there,
    under their ids, and are sent in order when a store is back.
    """
    effective = configured(url, config)
    found, leave = stores(effective.url)
    backends = [backend(each, connections=connections, config=effective) for each in found]
    kept = None if spool is None else Spool(Path(spool))
    return Bus(backends, on_close=leave, spool=kept, namespace=effective.namespace)


def connect_sync(
    url: Urls = None,
    *,
    config: Configuration = None,
    connections: int = 4,
    spool: str | os.PathLike[str] | None = None,
) -> SyncBus:
    """The same without await, for scripts: use it with `with`."""
    return SyncBus(connect(url, config=config, connections=connections, spool=spool))


def configured(url: Urls = None, config: Configuration = None) -> Config:
    """The configuration that holds: the one given, or that of a file and the environment, with this URL."""
    from holdfast.config.config import Config
    from holdfast.config.load import load

    given = None if url is None else split_urls(url)
    if not isinstance(config, Config):
        return load(config, flags={"url": given}).config
    return config if given is None else config.model_copy(update={"url": tuple(given)})


def rules(config: Config) -> Rules:
    """What the sweeper decides by."""
    sweeper, dead = config.sweeper, config.sweeper.dead_consumers
    return Rules(
        namespace=config.namespace,
        interval=sweeper.interval,
        lock_ttl=sweeper.lock_ttl,
        retention={
            pattern: Keep(keep.max_age, keep.max_bytes, keep.on_full)
            for pattern, keep in config.retention.items()
        },
        guard_groups=sweeper.guard_groups,
        dedupe_window=sweeper.dedupe_window,
        history=sweeper.history,
        dead_letters=sweeper.dead_letters,
        dead_consumers=DeadConsumers(dead.alive, dead.after, dead.action),
        lag_events=sweeper.lag_threshold.events,
        lag_age=sweeper.lag_threshold.age,
    )


def sweeper(store: Backend, config: Config, owner: str, health: Health | None = None) -> Sweeper:
    """The sweeper of one store, with everything that it has to see to."""
    from holdfast.deadletters.service import Folding
    from holdfast.upkeep.sweeper import Sweeper
    from holdfast.upkeep.taskrecords import TaskRecords

    records = TaskRecords(store, config.namespace, config.sweeper.history)
    folding = Folding(store, owner, config.dlq.interval)
    chores = {"tasks": records.settle, "folded": folding.run_once}
    forecasts = {"tasks": records.forecast, "folded": folding.forecast}
    return Sweeper(store, rules(config), owner, health=health, chores=chores, forecasts=forecasts)


def tasks(bus: Bus, config: Config) -> Tasks:
    """The task layer with the terms that the configuration has for each type."""
    from holdfast.tasks import Tasks, TaskType

    terms = {name: TaskType(*config.task(name)) for name in config.tasks.types}
    return Tasks(bus, config.namespace, terms, TaskType(*config.task("")))


def register(schemes: Sequence[str], factory: Factory, *, example: str) -> None:
    """Open the stores of these URL schemes with this factory.

    `example` is a URL that the error about an unknown scheme shows.
    """
    for scheme in schemes:
        _FACTORIES[scheme] = factory
        SCHEMES[scheme] = example


def backend(url: str, *, connections: int = 4, config: Config | None = None) -> Backend:
    """The backend for a URL's scheme. Raises `InvalidInput` where none is registered for it."""
    return _FACTORIES[urlsplit(check_url(url)).scheme](url, connections, config)


def _postgres(url: str, connections: int, config: Config | None) -> Backend:
    from holdfast.backends.postgres import PostgresBackend

    return PostgresBackend(url, connections=connections)


def _redis(url: str, connections: int, config: Config | None) -> Backend:
    from holdfast.backends.redis import RedisBackend

    return RedisBackend(url, connections=connections, **_written(config, "history", "dedupe_window"))


def _nats(url: str, connections: int, config: Config | None) -> Backend:
    from holdfast.backends.nats import NatsBackend

    return NatsBackend(url, connections=connections, **_written(config, "history"))


def _written(config: Config | None, *names: str) -> dict[str, Any]:
    """The settings of the sweeper that were written: a default must not undo what another process has set."""
    if config is None:
        return {}
    return {name: getattr(config.sweeper, name) for name in names if name in config.sweeper.model_fields_set}


register(("postgresql", "postgres"), _postgres, example="postgresql://user@host/database")
register(("redis", "rediss", "redis+sentinel", "rediss+sentinel"), _redis, example="redis://host:6379/0")
register(("nats", "tls"), _nats, example="nats://host:4222")


def home() -> Path:
    """`.holdfast/` in the present folder: only its user can list and enter it.

    Raises `InvalidInput` where it is another user's.
    """
    from holdfast.embedded import files

    try:
        return files.private_folder(HOME)
    except OSError as error:
        raise InvalidInput(
            f"{HOME} cannot be used: {error}; remove it, or work in a folder of your own"
        ) from None


def migration_script() -> str:
    """The schema as a script, for people who apply migrations themselves. Only PostgreSQL has one."""
    from holdfast.backends.postgres import migrate as migrations

    return migrations.script()


async def migrate(url: Urls = None, config: Configuration = None) -> list[list[str]]:
    """Bring every store up to date; returns, store by store, the names of what was applied."""
    applied = []
    with addresses(configured(url, config).url) as found:
        for each in found:
            store = backend(each)
            applied.append(await store.open())
            await store.close()
    return applied


@contextmanager
def addresses(urls: Sequence[str]) -> Iterator[list[str]]:
    """The addresses of the stores that are meant, for the length of a block."""
    found, leave = stores(urls)
    try:
        yield found
    finally:
        if leave is not None:
            leave()


def stores(urls: Sequence[str]) -> tuple[list[str], Callable[[], None] | None]:
    """The addresses of the stores that are meant; with how to leave it, where that is the private one."""
    if urls:
        return list(urls), None
    from holdfast.embedded import Postgres

    home()
    # Start, or join, the private server of this folder; it stops when its last user leaves.
    server = Postgres.shared(PRIVATE).start()
    return [server.url], server.stop


def urls(url: Urls = None) -> list[str]:
    """The URLs that are given or configured; none at all means the private store."""
    return list(configured(url).url)
