"""`holdfast sweep`: stuck work, retention and dead consumers, now or every interval."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from holdfast import wiring
from holdfast.bus.partitions import Partition
from holdfast.cli.options import ConfigFile, Json, Urls, examples, flat
from holdfast.cli.output import say, write_json, write_line
from holdfast.cli.session import open_partition, store_name
from holdfast.config.config import Config
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.upkeep.announcements import Swept
from holdfast.upkeep.sweeper import Sweeper

Once = Annotated[bool, typer.Option("--once", help="Sweep once and end; 1 where a store could not be swept.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what a sweep would do now; change nothing.")]


def sweep(
    once: Once = False,
    dry_run: DryRun = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Return stuck work to its queue, trim logs by their retention, look after dead consumers.

    One sweeper is at work on a store at a time; another one waits for its turn. Ctrl-C ends it between two
    steps. Retention and everything else come from the configuration.
    """
    effective = wiring.configured(flat(urls), config)
    try:
        swept = asyncio.run(_sweep_stores(effective, once=once, dry_run=dry_run, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if not swept:
        raise typer.Exit(1)


async def _sweep_stores(config: Config, *, once: bool, dry_run: bool, as_json: bool) -> bool:
    bus = wiring.connect(config=config)
    try:
        await _open(bus.partitions.all)
        sweepers = [
            (partition, wiring.sweeper(partition.backend, config, bus.name, partition.health))
            for partition in bus.partitions.all
        ]
        while True:
            swept = [await _sweep(*each, dry_run=dry_run, as_json=as_json) for each in sweepers]
            if once or dry_run:
                return all(swept)
            await asyncio.sleep(config.sweeper.interval.total_seconds())
    finally:
        await bus.close()


async def _open(partitions: Sequence[Partition]) -> None:
    """Open every store, without the step of the lifecycle that a bus begins with: a dry run changes nothing,
    and a sweep tells of what it moves. If none opens, the first error is raised."""
    errors = []
    for partition in partitions:
        try:
            await open_partition(partition)
        except Unavailable as error:
            errors.append(error)
    if len(errors) == len(partitions):
        raise errors[0]


async def _sweep(partition: Partition, sweeper: Sweeper, *, dry_run: bool, as_json: bool) -> bool:
    store = store_name(partition)
    try:
        if not partition.opened:
            await open_partition(partition)
        report = await (sweeper.dry_run() if dry_run else sweeper.run_once())
    except STORE_ERRORS as error:  # the next one may succeed
        raise_if_cancelled(error)
        say(f"{store}: the sweep failed: {error if isinstance(error, HoldfastError) else repr(error)}")
        return False
    if as_json:
        write_json({"store": store, "swept": None if report is None else report.model_dump(mode="json")})
    else:
        write_line(f"{store}: {'another sweeper is at work' if report is None else _summary(report)}")
    return True


def _summary(report: Swept) -> str:
    """A report in one line: only what there was."""
    counts = {
        "promoted": report.promoted,
        "stuck jobs retried": report.retried,
        "jobs buried": report.buried,
        "events trimmed": sum(report.trimmed.values()),
        "events dropped": sum(report.dropped.values()),
        "channels full": len(report.full),
        "dead letters purged": sum(report.purged.values()),
        "keys forgotten": report.forgotten_keys,
        "ended jobs forgotten": report.forgotten_jobs,
        "dead groups": len(report.groups),
        **report.chores,
    }
    words = [f"{count:,} {name}" for name, count in counts.items() if count]
    words += [f"{held.channel} held back by {held.consumer}" for held in report.held]
    return ("would be: " if report.dry_run else "") + (", ".join(words) or "nothing to do")


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples(
        "holdfast sweep --once --config holdfast.yaml", "holdfast sweep --dry-run", "holdfast sweep --json"
    )
    app.command(epilog=shown)(sweep)
