# ruff: noqa: E402
"""Schemathesis at length: all of its checks, with an admin's token and with one for a single channel.

    python tests/server/schemas.py                       # what `make schemathesis` runs
    python tests/server/schemas.py --cases 20 --tokens channel --log found.log

A real server that is not open, on a PostgreSQL of its own, with something in it to ask about, which is put
back when it is used up; made anew for each token. What schemathesis says goes to the log, with a command that
repeats each finding; the numbers of cases and findings are printed.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import argparse
import asyncio
import json
import logging
import os
import tempfile
from contextlib import suppress
from typing import IO, Any

import httpx
from running import running
from scene import ingest, ingest_reporter, with_store
from schema_hooks import WORLD
from world import CHANNEL, CONSUMER, World, settle

import holdfast
from holdfast.cli.pipeline import PipelineAccess, pipeline_access
from holdfast.config.load import load
from holdfast.deadletters.operation import OperationOptions, Request
from holdfast.deadletters.operations import Operations
from holdfast.deadletters.service import DeadLetters
from holdfast.embedded import Postgres
from holdfast.model.errors import HoldfastError, NotFound
from holdfast.model.event import new_id
from holdfast.model.job import Job
from holdfast.model.scopes import scope_of
from holdfast.model.states import State
from holdfast.pipeline.warehouse import Column, Table, Tables
from holdfast.server.auth.tokens import Tokens
from kit import bury, claim, in_memory, publish, subscribe

SCOPES = {"admin": ("admin", None, None), "channel": ("channel", CHANNEL, None)}
SERVER = {"port": 0, "open": False, "limits": {"rate": 0}}
READER = "alpha-reader"
CONFIG = """
ingest:
  channels: [{channel}]
  warehouse: duckdb://{folder}/warehouse.duckdb
  wal: {{path: {folder}/wal}}
  tables: {{{channel}: {{table: events, columns: {{total: {{path: $.total, type: integer}}}}}}}}
"""
LISTS = {
    "list_dead_jobs": f"/channel/{CHANNEL}/consumer/{CONSUMER}/dlq",
    "list_dead_letters": f"/api/v1/deadletters?channel={CHANNEL}",
    "list_operations": "/api/v1/operations",
    "list_failed_events": f"/api/v1/failed-events?channel={CHANNEL}",
}
"""Whose cursors are sealed, by operation."""


class Stock:
    """What there is to ask about. Thousands of requests end, remove and use it up: it is made anew."""

    def __init__(self, bus: holdfast.Bus, books: PipelineAccess, world: World, file: Path) -> None:
        self._bus, self._store = bus, bus.partitions.all[0].backend
        assert books.records is not None
        self._records, self._file = books.records, file
        self._names: dict[str, Any] = {
            **world.names,
            "delete_cursor.consumer": READER,
            "query_warehouse.sql": "SELECT count(*) AS events FROM all_events",
        }
        self._dead: list[Job] = []
        self._leased: Job | None = None
        self._operation = ""

    async def keep(self, client: httpx.AsyncClient) -> None:
        """Until cancelled. What somebody else changes at that moment is looked at again the next time."""
        while True:
            with suppress(HoldfastError, ValueError):
                await self.fill(client)
            await asyncio.sleep(0.2)

    async def fill(self, client: httpx.AsyncClient) -> None:
        """Once. The client gets the cursors, which hold for its token alone."""
        with suppress(HoldfastError):
            await self._store.cursors.attach(CHANNEL, READER)
        await self._consumer()
        self._dead = [each for each in self._dead if await self._state(each) is State.DEAD]
        while len(self._dead) < 3:
            job = await self._claimed()
            assert await bury(self._store, job)
            self._dead.append(job)
        if self._leased is None or await self._state(self._leased) is not State.LEASED:
            self._leased = await self._claimed()
        dead, leased = self._dead[0], self._leased
        self._names |= {
            "jobId": leased.id,
            "finalize_jobs.id": leased.id,
            "token": leased.token,
            "delete_dead_job.jobId": dead.id,
            "item": f"job:{CHANNEL}:{CONSUMER}:{dead.id}",
            "items": [f"job:{CHANNEL}:{CONSUMER}:{dead.id}"],
            "operation": await self._operation_of(),
            "read_events.after": leased.position,
        }
        for failed in await asyncio.to_thread(self._records.find, status="pending", limit=1):
            self._names |= {"failed": failed.id, "id": failed.event_id}
        for operation, path in LISTS.items():
            page = (await client.get(path, params={"limit": 1})).json()
            self._names[f"{operation}.after"] = page.get("after")
        self.tell()

    def tell(self) -> None:
        """Write it down for the hooks."""
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self._names))
        new.replace(self._file)

    async def _consumer(self) -> None:
        try:
            found = await self._store.channels.consumer(CHANNEL, CONSUMER)
        except NotFound:
            found = await subscribe(self._store, CONSUMER, channel=CHANNEL)
        if found.paused:
            await self._store.channels.set_paused(CHANNEL, CONSUMER, False)

    async def _operation_of(self) -> str:
        """One that somebody could cancel, or resume."""
        operations = Operations(DeadLetters(self._bus))
        if not self._operation or not (await operations.show(self._operation)).active:
            items = tuple(f"job:{CHANNEL}:{CONSUMER}:{number}" for number in range(900_000, 900_100))
            slow = Request("requeue", items=items, options=OperationOptions(rate=1))
            self._operation = (await operations.ask(slow, "alpha-operator")).id
        return self._operation

    async def _claimed(self) -> Job:
        await publish(self._store, new_id(), channel=CHANNEL)
        [job] = await claim(self._store, 1, channel=CHANNEL, consumer=CONSUMER)
        return job

    async def _state(self, job: Job) -> State | None:
        found = await self._store.leases.job(CHANNEL, CONSUMER, job.id)
        return None if found is None else found.state


def main() -> int:
    """0 when nothing was found with any token, and every operation was asked."""
    options = _options()
    logging.disable(logging.WARNING)  # each refusal is one
    logging.getLogger("holdfast.pipeline").setLevel(logging.CRITICAL)  # events are meant to fail
    # Answers are looked at, not what survives a crash: a disk that others use would make it much longer.
    with in_memory(), Postgres() as postgres, options.log.open("w") as log:
        wells = [_told(name, postgres, options, log) for name in options.tokens]
    sys.stdout.write(f"{options.log} says more\n")
    return 0 if all(wells) else 1


def _told(name: str, postgres: Postgres, options: argparse.Namespace, log: IO[str]) -> bool:
    """Ask with one token, and print how that was; returns whether all is well."""
    with tempfile.TemporaryDirectory(prefix="holdfast-schemathesis-") as folder:
        report = Path(folder) / "report.json"
        asyncio.run(_ask(postgres.create_database(name), SCOPES[name], report, options, log))
        found: dict[str, Any] = json.loads(report.read_text())
    cases, operations = found["test_cases"], found["operations"]
    told = f"{cases['generated']} cases of {operations['tested']} operations in {found['running_time']:.0f} s"
    sys.stdout.write(f"{name}: {told}, {cases['unique_failures']} findings, {cases['errored']} errors\n")
    sys.stdout.flush()
    return found["exit_code"] == 0 and operations["tested"] == operations["selected"]


async def _ask(
    url: str, scope: tuple[str, Any, Any], report: Path, options: argparse.Namespace, log: IO[str]
) -> None:
    folder = report.parent
    async with holdfast.connect(url) as bus:
        world = await settle(bus)
        await _fail(bus, folder)
        await with_store(url, ingest_reporter(folder).look)
        token = (await Tokens(bus, "gbe").create(scope_of(*scope))).text
        file = folder / "holdfast.yaml"
        with pipeline_access(load(file).config, file, [url]) as books:
            async with running(bus, server=SERVER, pipeline=books) as system:
                await system.readiness(200)
                system.client.headers["Authorization"] = f"Bearer {token}"
                assert books is not None
                stock = Stock(bus, books, world, folder / "world.json")
                await stock.fill(system.client)
                keeping = asyncio.create_task(stock.keep(system.client))
                await _run(_command(str(system.client.base_url), token, report, options), folder, log)
                keeping.cancel()


async def _fail(bus: holdfast.Bus, folder: Path) -> None:
    """Have some events that the ingest gives up on."""
    (folder / "holdfast.yaml").write_text(CONFIG.format(channel=CHANNEL, folder=folder))
    receipts = [await bus.publish(CHANNEL, {"total": "x"}) for _ in range(100)]
    table = Table("events", (Column("total", "$.total", "integer"),))
    ingest(folder, Tables({CHANNEL: table}), CHANNEL, [(each.id, each.position) for each in receipts])


async def _run(command: list[str], folder: Path, log: IO[str]) -> None:
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": str(HERE / "schema_hooks.py"),
        WORLD: str(folder / "world.json"),
    }
    asked = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=log, stderr=log
    )
    await asked.wait()


def _command(address: str, token: str, report: Path, options: argparse.Namespace) -> list[str]:
    return [
        str(Path(sys.executable).with_name("schemathesis")),
        f"--config-file={HERE / 'schemathesis.toml'}",
        "run",
        f"{address}/openapi.json",
        f"--url={address}",
        f"--header=Authorization:Bearer {token}",
        "--checks=all",
        "--continue-on-failure",
        f"--max-examples={options.cases}",
        f"--seed={options.seed}",
        f"--report-json-path={report}",
        "--generation-database=none",
        "--suppress-health-check=all",
        "--no-color",
        *(f"--include-operation-id={each}" for each in options.operations),
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Hold a server to its OpenAPI document.")
    parser.add_argument("--cases", type=int, default=250, help="made up for each operation")
    parser.add_argument("--tokens", nargs="+", choices=list(SCOPES), default=list(SCOPES))
    parser.add_argument("--operations", nargs="+", default=[], metavar="ID", help="only these")
    parser.add_argument("--seed", type=int, default=20261117)
    parser.add_argument("--log", type=Path, default=Path("schemathesis.log"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
