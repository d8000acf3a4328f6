"""A standby that follows a server asynchronously, and takes over without what it never received.

`pair` in this folder's conftest is one of these and a database on both of them, behind a proxy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self, cast
from urllib.parse import urlsplit

import psycopg

from holdfast.embedded import Postgres, files
from holdfast.embedded.servers import programs_folder
from holdfast_chaos.proxy import Proxy

_PATIENCE = 60.0
BACKUP = ("pg_basebackup", "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast")
SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB"}


class Standby(Postgres):
    """A hot standby of `primary`: a base backup of it, streaming from it until `part` or `promote`."""

    def __init__(self, primary: Postgres, backup: Sequence[str] = BACKUP) -> None:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=primary.folder.parent))
        super().__init__(folder, SETTINGS)
        self._primary, self._backup = primary, backup
        files.write_private(folder / "secret", primary.secret)

    def prepare(self) -> None:
        data = self.folder / "data"
        if data.exists():
            return
        program, *options = self._backup
        subprocess.run(
            [programs_folder() / program, f"--pgdata={data}", *options, "--no-sync"],
            env=self._primary._client(),
            check=True,
        )
        if os.geteuid() == 0:  # the server runs as this user: see holdfast.embedded.cluster
            for path in [data, *data.rglob("*")]:
                shutil.chown(path, "nobody", -1)

    def stop(self) -> None:
        folder = self.folder
        super().stop()
        shutil.rmtree(folder, ignore_errors=True)

    def catch_up(self) -> None:
        """Return when it has replayed all that the primary has written until now."""
        end = ask(self._primary.url, "SELECT pg_current_wal_insert_lsn()")
        ask(self._primary.url, "CHECKPOINT")  # flushes also what no commit waits for
        _wait(lambda: ask(self.url, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", end))

    def follow(self, primary: Postgres) -> Self:
        """Forget what it has, and follow this one from now on."""
        self.kill()
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        self._primary = primary
        return self.start()

    def make_synchronous(self) -> None:
        """From now on, the primary acknowledges only what has been written here."""
        ask(self._primary.url, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        ask(self._primary.url, "SELECT pg_reload_conf()")
        _wait(
            lambda: ask(
                self._primary.url, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            )
        )

    def part(self) -> None:
        """Receive nothing from now on: what the primary acknowledges after this is lost to the standby."""
        ask(self.url, "ALTER SYSTEM SET primary_conninfo = ''")
        ask(self.url, "SELECT pg_reload_conf()")
        _wait(lambda: not ask(self.url, "SELECT count(*) FROM pg_stat_wal_receiver"))

    def promote(self) -> Self:
        """Take over with what it has. The old primary goes on alone, as one that is cut off does."""
        assert ask(self.url, "SELECT pg_promote(true, 60)")
        return self


class Pair(NamedTuple):
    """A database on a primary and on its standby, and a proxy that leads to one of them."""

    standby: Standby
    proxy: Proxy
    first: str
    second: str

    @property
    def url(self) -> str:
        """By way of the proxy: first to the primary, after `turn` to the standby."""
        return self.proxy.url(self.first)

    def part(self) -> None:
        """What was acknowledged until here survives; nothing that comes after it does."""
        self.standby.catch_up()
        self.standby.part()

    async def turn(self) -> None:
        """Lead to the standby from now on; connections that are open break."""
        self.proxy._server = ("127.0.0.1", self.standby.port)
        await self.proxy.reset()

    async def fail_over(self) -> None:
        self.standby.promote()
        await self.turn()


@asynccontextmanager
async def paired(primary: Postgres, database: str) -> AsyncIterator[Pair]:
    """A standby of the primary, and this database of it on both."""
    with Standby(primary) as standby:
        async with Proxy("127.0.0.1", primary.port) as proxy:
            name = PurePosixPath(urlsplit(database).path).name
            yield Pair(standby, proxy, database, standby.database_url(name))


def ask(url: str, query: str, *parameters: Any) -> Any:
    """The first value of a statement on a connection of its own, or None where it returns nothing."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        cursor = connection.execute(cast("Any", query), parameters)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def _wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
