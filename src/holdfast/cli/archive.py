"""`holdfast archive`: channels to cold storage, and whether it is all there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import wiring
from holdfast.cli import logs
from holdfast.cli.options import ConfigFile, Json, LogFormat, Urls, examples, flat
from holdfast.cli.output import say, write_json, write_line, write_table
from holdfast.cli.places import check_archive
from holdfast.cli.policies import destinations, from_flags, policies
from holdfast.cli.stopping import told_to_stop

if TYPE_CHECKING:  # Spark takes longer to import than most commands to run
    from holdfast.config.config import Config
    from holdfast.pipeline.archive.metrics import Metrics
    from holdfast.pipeline.archive.policy import ArchivePolicy

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
    batch_timeout: BatchTimeout = "60s",
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
    logs.configure(log_format or effective.log_format, as_json=as_json)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what fails is said below
    _print(_archive(effective, todo, checkpoints, master, once=once), as_json)


def _archive(
    config: Config, todo: list[ArchivePolicy], checkpoints: Path, master: str, *, once: bool
) -> Metrics:
    from holdfast.pipeline.archive.archiver import Archiver
    from holdfast.pipeline.session import session

    with wiring.addresses(config.url) as urls, session(master, name="holdfast archive") as spark:
        archiver = Archiver(spark, urls, todo, checkpoints)
        if once:
            return archiver.run_once()
        with told_to_stop("writing what has not filled an object yet") as stop:
            return archiver.run(stop)


@app.command(
    epilog=examples(
        "holdfast archive verify --destination s3://bucket/prefix",
        "holdfast archive verify --config holdfast.yaml",
    )
)
def verify(
    destination: Destination = None,
    master: Master = "local[*]",
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Read every object back and compare it with its manifest. Ends with 1 when anything is wrong.

    Named are objects that are missing, damaged, or in no manifest, and gaps between manifests. Objects beyond
    the last manifest are an archiver's work in progress, and no fault. No manifest at all is no archive.
    """
    from holdfast.pipeline.archive.verify import verify as read_back
    from holdfast.pipeline.session import session

    where = [destination] if destination else destinations(wiring.configured(None, config))
    for each in where:
        check_archive(each)
    with session(master, name="holdfast archive verify") as spark:
        reports = {each: read_back(spark, each) for each in where}
    if as_json:
        write_json(
            [{"destination": _shown(each), "sound": r.sound, "report": r} for each, r in reports.items()]
        )
    else:
        problems = [problem for report in reports.values() for problem in report.problems]
        if problems:
            write_table(["PROBLEM", "OBJECT", "WHAT"], problems)
        for each, report in reports.items():
            verdict = "sound" if report.sound else "NOT SOUND"
            say(
                f"{_shown(each)}: {verdict}; {report.rows:,} rows in {report.objects:,} objects of "
                f"{report.manifests:,} manifests"
            )
    if not all(report.sound for report in reports.values()):
        raise typer.Exit(1)


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
