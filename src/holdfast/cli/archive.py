"""`holdfast archive`: channels to cold storage, and whether it is all there."""

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
from holdfast.cli.places import check_archive
from holdfast.cli.policies import destinations, from_flags, policies, streams_elsewhere, streams_of
from holdfast.cli.selected import tell_unmatched
from holdfast.cli.stopping import told_to_stop
from holdfast.model.errors import InvalidInput

if TYPE_CHECKING:  # Spark takes longer to import than most commands to run
    from holdfast.config.config import Config
    from holdfast.pipeline.archive.metrics import Metrics
    from holdfast.pipeline.archive.origin import Origin
    from holdfast.pipeline.archive.policy import ArchivePolicy
    from holdfast.pipeline.archive.verify import Report

app = typer.Typer(rich_markup_mode=None)
CHECKPOINTS = wiring.HOME / "archive"

Once = Annotated[bool, typer.Option("--once", help="Archive what is there now, and end.")]
Master = Annotated[str, typer.Option("--master", help="Spark's master: local[*], spark://…, yarn, k8s://…")]
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
Checkpoints = Annotated[Path, typer.Option("--checkpoints", help="A local folder for Spark's checkpoints.")]


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
    todo = [from_flags(effective, *flags)] if stream or destination else policies(effective, consumer)
    logs.configure_driver("archive", log_format, effective, as_json=as_json)
    _print(_archive(effective, todo, checkpoints, master, once=once), as_json)


def _archive(
    config: Config, todo: list[ArchivePolicy], checkpoints: Path, master: str, *, once: bool
) -> Metrics:
    from holdfast.cli.spark import session
    from holdfast.pipeline.archive.archiver import Archiver

    with wiring.addresses(config.url) as urls:
        if once:
            asyncio.run(tell_unmatched(config, urls, [each.stream for each in todo]))
        with session(master, name="holdfast archive", plans=True) as spark:
            archiver = Archiver(spark, urls, todo, checkpoints)
            if once:
                return archiver.run_once()
            with told_to_stop("writing what has not filled an object yet") as stop:
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
    effective, where = _places(destination, urls, config)
    with _origins(effective, where, consumer) as origins, _verifier(master, "verify") as read_back:
        reports = {each: read_back(each, origins[each]) for each in where}
    if as_json:
        write_json(
            [{"destination": _shown(each), "sound": r.sound, "report": r} for each, r in reports.items()]
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

    effective, where = _places(destination, urls, config, whole=False)
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
                    "destination": _shown(each),
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


def _places(
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
    from holdfast.pipeline.archive.origin import Origin
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
def _verifier(master: str, what: str) -> Iterator[Callable[[str, Origin | None], Report]]:
    """Verifies archives, for the length of a block."""
    from holdfast.cli.spark import session
    from holdfast.pipeline.archive.verify import verify

    with session(master, name=f"holdfast archive {what}") as spark:
        yield partial(verify, spark)


def _print_reports(reports: dict[str, Report]) -> None:
    problems = [problem for report in reports.values() for problem in report.problems]
    if problems:
        write_table(["PROBLEM", "OBJECT", "WHAT"], problems)
    for each, report in reports.items():
        verdict = "sound" if report.sound else "NOT SOUND"
        unasked = "" if report.compared else "; no store was asked how far it should go: give --url"
        say(
            f"{_shown(each)}: {verdict}; {report.rows:,} rows in {report.objects:,} objects of "
            f"{report.manifests:,} manifests{unasked}"
        )
        if report.unassigned:
            say(
                f"nothing of {', '.join(report.unassigned)} is here, though it was archived, and nothing "
                "says whether it should be: give a --config with archiver: streams:"
            )


def _print(metrics: Metrics, as_json: bool) -> None:
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


def _shown(destination: str) -> str:
    from holdfast.config.urls import mask

    return mask(destination)
