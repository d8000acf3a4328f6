"""`holdfast archive` and `holdfast replay`: channels to cold storage, whether all is there, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import wiring
from holdfast.cli import logs
from holdfast.cli.options import INCOMPLETE, ConfigFile, Json, LogFormat, Urls, examples, flat
from holdfast.cli.output import say, write_json, write_line, write_table
from holdfast.cli.pipeline import (
    Checkpoints,
    Master,
    archive_policies,
    archive_policy,
    check_archive,
    destinations,
    streams_elsewhere,
    streams_of,
)
from holdfast.cli.session import warn_unmatched
from holdfast.cli.spark import stop_requested
from holdfast.model.errors import InvalidInput
from holdfast.model.names import check_name
from holdfast.model.redact import mask

if TYPE_CHECKING:  # Spark takes longer to import than most commands to run
    from holdfast.config.config import Config
    from holdfast.pipeline.archive.archiver import ArchiveMetrics
    from holdfast.pipeline.archive.policy import ArchivePolicy
    from holdfast.pipeline.archive.verify import Origin, VerifyReport

app = typer.Typer(rich_markup_mode=None)
CHECKPOINTS = wiring.HOME / "archive"
Once = Annotated[bool, typer.Option("--once", help="Archive what is there now, and end.")]
Stream = Annotated[
    str | None, typer.Option("--stream", metavar="PATTERN", help="Instead of the file's streams.")
]
Destination = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A folder, s3://bucket/prefix, or postgresql://…/db?table=name."),
]
BatchSize = Annotated[int, typer.Option(help="With --stream: messages per object.")]
BatchTimeout = Annotated[str, typer.Option(help="With --stream: flush a smaller object after this time.")]
ConsumerName = Annotated[str, typer.Option("--consumer", help="The name of the archiver's cursors.")]
Unproven = Annotated[
    bool,
    typer.Option(
        "--unproven",
        help="Where the log is trimmed, list the objects that are there, though nothing proves that none is "
        "missing.",
    ),
]
From = Annotated[str, typer.Option("--from", metavar="URL", help="The archive.")]
Condition = Annotated[
    str, typer.Option("--where", metavar="SQL", help="Which events: a condition on the columns.")
]
To = Annotated[str, typer.Option("--to", metavar="CHANNEL", help="The channel to publish to.")]
Again = Annotated[
    bool, typer.Option("--again", help="Also what the store may have forgotten, as new events.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be published.")]


@app.callback(
    invoke_without_command=True,
    epilog=examples(
        "holdfast archive --config holdfast.yaml",
        "holdfast archive --once --stream 'gbe.events.audit.*' --destination ./cold",
        "holdfast archive --stream orders --destination s3://bucket/prefix --master spark://host:7077",
    ),
)
def archive(
    context: typer.Context,
    once: Once = False,
    stream: Stream = None,
    destination: Destination = None,
    batch_size: BatchSize = 1000,
    batch_timeout: BatchTimeout = "15m",
    consumer: ConsumerName = "archiver",
    master: Master = "local[*]",
    checkpoints: Checkpoints = CHECKPOINTS,
    urls: Urls = None,
    config: ConfigFile = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Write channels to cold storage, each event once, and move the cursor that retention waits for.

    Runs until SIGTERM or Ctrl-C, then flushes what has not filled an object yet. One archiver is at work at
    a time; another one waits for its turn, or with --once ends with 1.
    """
    if context.invoked_subcommand is not None:
        return
    effective = wiring.configured(flat(urls), config)
    flags = (stream, destination, batch_size, batch_timeout, consumer)
    todo = (
        [archive_policy(effective, *flags)]
        if stream or destination
        else archive_policies(effective, consumer)
    )
    logs.configure_driver("archive", log_format, effective, as_json=as_json)
    _print(_archive(effective, todo, checkpoints, master, once=once), as_json)


def _archive(
    config: Config, todo: list[ArchivePolicy], checkpoints: Path, master: str, *, once: bool
) -> ArchiveMetrics:
    from holdfast.cli.spark import session
    from holdfast.pipeline.archive.archiver import Archiver

    with wiring.addresses(config.url) as urls:
        if once:
            asyncio.run(warn_unmatched(config, urls, [each.stream for each in todo]))
        with session(master, name="holdfast archive", plans=True) as spark:
            archiver = Archiver(spark, urls, todo, checkpoints)
            if once:
                return archiver.run_once()
            with stop_requested("writing what has not filled an object yet") as stop:
                return archiver.run(stop)


@app.command(
    epilog=examples(
        "holdfast archive verify --destination s3://bucket/prefix --url postgresql://localhost/shop",
        "holdfast archive verify --config holdfast.yaml",
    )
)
def verify(
    destination: Destination = None,
    consumer: ConsumerName = "archiver",
    master: Master = "local[*]",
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Read every object back and compare it with its manifest. Ends with 1 when anything is wrong.

    Named are objects that are missing, damaged, or in no manifest, gaps between manifests, and manifests that
    end before the archiver's cursor or list other events than the log still has. Objects beyond the cursor
    are an archiver's work in progress, and no fault. No manifest at all is no archive. Where no store is
    named, none is asked, and the end of a channel is not proven. A channel of which nothing is left is
    missed where the configuration puts it into this archive, and otherwise named.
    """
    effective, where = _chosen_archives(destination, urls, config)
    with _origins(effective, where, consumer) as origins, _verifier(master, "verify") as read_back:
        reports = {each: read_back(each, origins[each]) for each in where}
    if as_json:
        write_json(
            [{"destination": mask(each), "sound": r.sound, "report": r} for each, r in reports.items()]
        )
    else:
        _print_reports(reports)
    if not all(report.sound for report in reports.values()):
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "holdfast archive repair --config holdfast.yaml",
        "holdfast archive repair --destination ./cold --url postgresql://localhost/shop",
    )
)
def repair(
    destination: Destination = None,
    consumer: ConsumerName = "archiver",
    unproven: Unproven = False,
    master: Master = "local[*]",
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make missing manifests anew, and write missing or damaged objects again from the log; then verify.

    A manifest is made from the objects that are there where they hold exactly the events that the log has in
    their place; otherwise they are written again from the log. It takes the archiver's turn, and ends with 1
    where an archiver is at work. Ends with 4 where the archive is not sound afterwards, or not proven to be.
    """
    from holdfast.pipeline.archive.repair import ArchiveRepair
    from holdfast.pipeline.driver_lock import driver_lock, wait_for_stale_lock
    from holdfast.pipeline.stores import open_store

    effective, where = _chosen_archives(destination, urls, config, whole=False)
    done: dict[str, ArchiveRepair] = {}
    with _origins(effective, where, consumer) as origins, _verifier(master, "repair") as read_back:
        for each in where:
            origin = origins[each]
            if origin is None:
                raise InvalidInput("an archive is repaired from its store: name it with --url")
            done[each] = ArchiveRepair(open_store(each), origin, unproven=unproven)
            lock = f"{effective.namespace}:lock:archiver:{consumer}"
            with driver_lock(origin.connection, lock, "archiver", wait_for_stale_lock()):
                done[each].run()
        reports = {each: read_back(each, origins[each]) for each in where}
    if as_json:
        write_json(
            [
                {
                    "destination": mask(each),
                    "sound": r.sound,
                    "repaired": done[each].done,
                    "left": done[each].left,
                    "report": r,
                }
                for each, r in reports.items()
            ]
        )
    else:
        rows = [("repaired", each.object, each.message) for one in done.values() for each in one.done]
        rows += [("NOT REPAIRED", each.object, each.message) for one in done.values() for each in one.left]
        if rows:
            write_table(["RESULT", "OBJECT", "WHAT"], rows)
        _print_reports(reports)
    proven = all(each.proven for one in done.values() for each in one.done)
    if not proven or not all(report.sound for report in reports.values()):
        raise typer.Exit(INCOMPLETE)


def _chosen_archives(
    destination: str | None, urls: Urls, config: ConfigFile, *, whole: bool = True
) -> tuple[Config, list[str]]:
    """The configuration, and the archives that are meant; `NotFound` where one is none."""
    effective = wiring.configured(flat(urls), config)
    where = [destination] if destination else destinations(effective)
    for each in where:
        check_archive(each, whole=whole)
    return effective, where


@contextmanager
def _origins(config: Config, where: list[str], consumer: str) -> Iterator[dict[str, Origin | None]]:
    """The stores of each archive, for the length of a block; None where no store is named."""
    from holdfast.pipeline.archive.verify import Origin
    from holdfast.pipeline.connection import Connection

    if not config.url and not wiring.PRIVATE.exists():
        yield dict.fromkeys(where)
        return
    with wiring.addresses(config.url) as urls, Connection(urls) as connection:
        yield {
            each: Origin(connection, consumer, streams_of(config, each), streams_elsewhere(config, each))
            for each in where
        }


@contextmanager
def _verifier(master: str, what: str) -> Iterator[Callable[[str, Origin | None], VerifyReport]]:
    """Verifies archives, for the length of a block."""
    from holdfast.cli.spark import session
    from holdfast.pipeline.archive.verify import verify

    with session(master, name=f"holdfast archive {what}") as spark:
        yield partial(verify, spark)


def _print_reports(reports: dict[str, VerifyReport]) -> None:
    problems = [problem for report in reports.values() for problem in report.problems]
    if problems:
        write_table(["PROBLEM", "OBJECT", "WHAT"], problems)
    for each, report in reports.items():
        verdict = "sound" if report.sound else "NOT SOUND"
        unasked = "" if report.compared else "; no store was asked how far it should go: give --url"
        say(
            f"{mask(each)}: {verdict}; {report.rows:,} rows in {report.objects:,} objects of "
            f"{report.manifests:,} manifests{unasked}"
        )
        if report.unassigned:
            say(
                f"nothing of {', '.join(report.unassigned)} is here, though it was archived, and nothing "
                "says whether it should be: give a --config with archiver: streams:"
            )


def _print(metrics: ArchiveMetrics, as_json: bool) -> None:
    channels = sorted(metrics.channels.items())
    if as_json:
        write_json(
            [{"channel": channel, **{n: getattr(t, n) for n in t.__slots__}} for channel, t in channels]
        )
    elif channels:
        rows = [(channel, t.rows, t.objects, t.bytes) for channel, t in channels]
        write_table(["CHANNEL", "EVENTS", "OBJECTS", "BYTES"], rows)
    else:
        write_line("nothing new to archive")


def replay(
    source: From,
    where: Condition,
    to: To,
    again: Again = False,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Publish archived events with their original ids, in their order.

    Columns: message_id, timestamp, channel, partition, position, source, type, key, headers, data (JSON as
    text), data_base64. Into the channel that they came from, what the store still knows changes nothing.
    """
    check_name(to)
    from holdfast.cli.spark import session
    from holdfast.pipeline.replay import count, publish, refuse_forgotten, select

    effective = wiring.configured(flat(urls), config)
    check_archive(source)
    with session(master, name="holdfast replay") as spark:
        events = select(spark, source, where)
        result = count(events)
        if not again:
            refuse_forgotten(events, to, effective.sweeper.dedupe_window)
        if not dry_run:

            async def work() -> None:
                async with wiring.connect(config=effective) as bus:
                    await publish(bus, events, to, result)

            asyncio.run(work())
    if as_json:
        write_json(result)
        return
    write_table(["CHANNEL", "EVENTS"], result.channels.items())
    if dry_run:
        say(f"{result.matched:,} events would be published to {to}")
    else:
        say(f"{result.published:,} events published to {to}, {result.duplicates:,} were there before")


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples(
        "holdfast replay --from s3://bucket/prefix --to orders-again --where \"channel = 'orders'\"",
        "holdfast replay --from ./cold --to audit --dry-run --where \"timestamp >= '2026-02-14'\"",
        "holdfast replay --from ./cold --to audit --where \"get_json_object(data, '$.user') = 'ann'\"",
    )
    app.command(epilog=shown)(replay)
