"""`holdfast demo`: run the steps, then audit the store."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.demo import pipeline as pipelines
from holdfast.cli.demo.audit import Tally, audit
from holdfast.cli.demo.crew import Crew
from holdfast.cli.demo.pipeline import Pipeline
from holdfast.cli.demo.screen import Screen
from holdfast.cli.demo.stage import Stage
from holdfast.cli.demo.steps import Step, steps
from holdfast.cli.options import Json, examples, flat
from holdfast.cli.output import say, write_json, write_pairs, write_table
from holdfast.embedded import Postgres
from holdfast.model.errors import HoldfastError
from holdfast.model.event import new_id
from holdfast.wiring import connect

Seconds = Annotated[int, typer.Option(min=5, max=60, help="How long it takes, roughly.")]
# Not from the environment: a demo has to be asked before it writes to somebody's store.
Urls = Annotated[
    list[str] | None,
    typer.Option("--url", metavar="URL", help="Run on this store. Default: a private one, removed after."),
]
Folder = Annotated[Path, typer.Option(help="Where archive, WAL and warehouse go; emptied first, kept after.")]
NoPipeline = Annotated[bool, typer.Option("--no-pipeline", help="Leave out Spark: no archive, no warehouse.")]
_PER_SECOND = 300
_PATIENCE = 600.0  # a busy machine takes minutes for what takes seconds


def demo(
    seconds: Seconds = 30,
    folder: Folder = Path(".holdfast/demo"),
    no_pipeline: NoPipeline = False,
    urls: Urls = None,
    as_json: Json = False,
) -> None:
    """Kill and freeze workers and a Spark driver, then account for every order.

    Orders are published, some twice; worker processes are killed and frozen in the middle of them. Then all
    orders go to the archive and into the warehouse. Ends with 1 when an acknowledged order is lost, left
    over, or not in the books.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        addresses = stack.enter_context(_store(urls))
        pipeline = None
        if not no_pipeline and pipelines.available():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            pipeline = Pipeline(folder, addresses, stack)
        todo = steps(pipeline)
        screen = stack.enter_context(Screen(len(todo) + 1))
        tally = asyncio.run(_play(screen, addresses, seconds * _PER_SECOND, todo))
    report = _report(tally, time.monotonic() - began)
    books = [] if pipeline is None else [each.to_json() for each in pipeline.reports]
    if as_json:
        write_json(report | {"books": books})
    else:
        write_pairs({name.replace("_", " "): value for name, value in report.items()})
        _write_books(books, folder)
    if not tally.ok:
        raise typer.Exit(1)


def _write_books(books: Sequence[dict[str, Any]], folder: Path) -> None:
    if books:
        names = ("channel", "published", "archived", "ingested", "failed")
        write_table([name.upper() for name in names], [[each[name] for name in names] for each in books])
        say(f"look around: {folder}/archive, {folder}/warehouse.duckdb, {folder}/wal")


@contextmanager
def _store(urls: Sequence[str] | None) -> Iterator[list[str]]:
    if given := flat(urls):
        yield given
        return
    with Postgres() as server:
        yield [server.create_database("demo")]


async def _play(screen: Screen, urls: list[str], size: int, todo: Sequence[tuple[str, Step]]) -> Tally:
    channel = f"demo.{new_id()[:13]}.orders"
    async with connect(urls) as bus, Crew(",".join(urls), channel) as crew:
        stage = Stage(bus, crew, channel, size)
        follower = asyncio.create_task(screen.follow(stage))
        try:
            for name, step in todo:
                screen.begin(name)
                screen.shown(name, await _within(_PATIENCE, name, step(stage)))
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
        screen.begin("audit")
        tally = await audit(bus, stage.record)
        screen.shown("audit", "every acknowledged order looked up in the log, and its job")
        return tally


async def _within(seconds: float, name: str, step: Awaitable[str]) -> str:
    try:
        async with asyncio.timeout(seconds):
            return await step
    except TimeoutError:
        raise HoldfastError(f"the step {name!r} was not over after {seconds:.0f} s") from None


def _report(tally: Tally, seconds: float) -> dict[str, Any]:
    return {
        "published": tally.published,
        "duplicates_refused": tally.duplicates_refused,
        "conflicts_refused": tally.conflicts_refused,
        "stale_answers_refused": tally.stale_answers_refused,
        "completed": tally.completed,
        "retried": tally.retried,
        "abandoned": tally.abandoned,
        "dead": sum(tally.dead.values()),
        "dead_by_reason": dict(sorted(tally.dead.items())),
        "unfinished": tally.unfinished,
        "lost": tally.lost,
        "seconds": round(seconds, 1),
    }


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=examples("holdfast demo", "holdfast demo --seconds 10 --no-pipeline --json"))(demo)
