"""`holdfast demo`: run the steps, then audit the store."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from holdfast.cli.demo.audit import DemoResult, audit
from holdfast.cli.demo.pipeline import Pipeline
from holdfast.cli.demo.processes import DemoProcesses
from holdfast.cli.demo.steps import DemoRun, Step, steps
from holdfast.cli.options import Json, examples, flat
from holdfast.cli.output import say, stderr, write_json, write_pairs, write_table
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
_EVERY = 0.25
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
    from holdfast.config.load import has_spark

    began = time.monotonic()
    with ExitStack() as stack:
        addresses = stack.enter_context(_store(urls))
        pipeline = None
        if not no_pipeline and has_spark():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            pipeline = Pipeline(folder, addresses, stack)
        todo = steps(pipeline)
        screen = stack.enter_context(Screen(len(todo) + 1))
        result = asyncio.run(_run_steps(screen, addresses, seconds * _PER_SECOND, todo))
    report = _report(result, time.monotonic() - began)
    books = [] if pipeline is None else [each.to_json() for each in pipeline.reports]
    if as_json:
        write_json(report | {"books": books})
    else:
        write_pairs({name.replace("_", " "): value for name, value in report.items()})
        _write_books(books, folder)
    if not result.ok:
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


async def _run_steps(
    screen: Screen, urls: list[str], size: int, todo: Sequence[tuple[str, Step]]
) -> DemoResult:
    channel = f"demo.{new_id()[:13]}.orders"
    async with connect(urls) as bus, DemoProcesses(",".join(urls), channel) as processes:
        run = DemoRun(bus, processes, channel, size)
        follower = asyncio.create_task(screen.follow(run))
        try:
            for name, step in todo:
                screen.begin(name)
                screen.shown(name, await _within(_PATIENCE, name, step(run)))
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
        screen.begin("audit")
        result = await audit(bus, run.expected)
        screen.shown("audit", "every acknowledged order looked up in the log, and its job")
        return result


async def _within(seconds: float, name: str, step: Awaitable[str]) -> str:
    try:
        async with asyncio.timeout(seconds):
            return await step
    except TimeoutError:
        raise HoldfastError(f"the step {name!r} was not over after {seconds:.0f} s") from None


def _report(result: DemoResult, seconds: float) -> dict[str, Any]:
    return {
        "published": result.published,
        "duplicates_refused": result.duplicates_refused,
        "conflicts_refused": result.conflicts_refused,
        "stale_answers_refused": result.stale_answers_refused,
        "completed": result.completed,
        "retried": result.retried,
        "abandoned": result.abandoned,
        "dead": sum(result.dead.values()),
        "dead_by_reason": dict(sorted(result.dead.items())),
        "unfinished": result.unfinished,
        "lost": result.lost,
        "seconds": round(seconds, 1),
    }


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=examples("holdfast demo", "holdfast demo --seconds 10 --no-pipeline --json"))(demo)


class Screen:
    """Speaks on stderr; the bar is for terminals only."""

    def __init__(self, steps: int) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn()
        self._progress = Progress(
            *columns, TimeElapsedColumn(), console=stderr(), transient=True, disable=not sys.stderr.isatty()
        )
        self._task = self._progress.add_task("start", total=None)
        self._steps, self._step = steps, 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, name: str) -> None:
        """A step starts."""
        self._step += 1
        self._progress.update(self._task, description=name)

    def shown(self, name: str, line: str) -> None:
        """A step is over."""
        place = Text(f"{self._step:>2}/{self._steps}  ", style="dim")
        stderr().print(
            place, Text(f"{name:<9} ", style="bold"), Text(line), sep="", soft_wrap=not stderr().is_terminal
        )

    async def follow(self, run: DemoRun) -> None:
        """Keep the bar up to date until cancelled."""
        while True:
            total = len(run.expected.acknowledged)
            if total:
                try:
                    self._progress.update(self._task, total=total, completed=total - await run.live())
                except HoldfastError:
                    return  # the step that runs says it better
            await asyncio.sleep(_EVERY)
