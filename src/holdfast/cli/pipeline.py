"""What commands of the pipeline share: options, plans from the configuration, and checks of what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from holdfast.cli.options import ConfigFile, Urls, flat
from holdfast.model.duration import parse_duration
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.names import selects
from holdfast.model.redact import mask

if TYPE_CHECKING:  # Arrow takes longer to import than most commands to run
    from holdfast.config.config import ArchiveStream, CompactionSection, Config
    from holdfast.pipeline.archive.policy import ArchivePolicy
    from holdfast.pipeline.failed.service import FailedEvents
    from holdfast.pipeline.ingest.plan import IngestPlan
    from holdfast.pipeline.reconcile.inputs import Inputs
    from holdfast.pipeline.trace import EventTrace
    from holdfast.pipeline.upkeep import CompactionSettings

Master = Annotated[str, typer.Option("--master", help="Spark's master: local[*], spark://…, yarn, k8s://…")]
Checkpoints = Annotated[Path, typer.Option("--checkpoints", help="A local folder for Spark's checkpoints.")]
WalPath = Annotated[str | None, typer.Option("--wal", metavar="PATH", help="A folder or s3://bucket/prefix.")]
WarehouseUrl = Annotated[
    str | None,
    typer.Option(
        "--warehouse",
        metavar="URL",
        help="duckdb:///path/to/file.duckdb, delta:///path/to/folder or delta+s3://bucket/prefix",
    ),
]
Archive = Annotated[
    str | None, typer.Option("--archive", metavar="URL", help="The archive, instead of the file's.")
]


def pipeline_config(
    urls: Urls,
    config: ConfigFile,
    archive: str | None,
    wal: str | None,
    warehouse: str | None,
    channel: str | None,
) -> Config:
    """The configuration, with what the flags say. A warehouse or a WAL that is named is this channel's."""
    from holdfast.config.load import load

    ingested = (warehouse or wal) and [channel or ">"]
    flags = {
        "url": flat(urls),
        "ingest.channels": ingested or None,
        "ingest.wal.path": wal,
        "ingest.warehouse": warehouse,
    }
    found = load(config, flags=flags).config
    if not (archive or found.archive_streams or found.ingest.channels):
        raise InvalidInput(
            "nothing to compare with: give --archive or --warehouse, or a --config with archiver: or ingest:"
        )
    return found


def wal_config(file: ConfigFile, flags: Mapping[str, object]) -> Config:
    """The configuration with these flags; for all channels where it names none: the WAL may have any."""
    from holdfast.config.load import load

    found = load(file, flags=flags).config
    return found if found.ingest.channels else load(file, flags={**flags, "ingest.channels": [">"]}).config


def archive_policies(config: Config, consumer: str) -> list[ArchivePolicy]:
    """What the configuration has archived. Raises `InvalidInput` where that is nothing."""
    if not config.archive_streams:
        raise InvalidInput(
            "nothing to archive: give --stream and --destination, or a --config with archiver: streams:"
        )
    from holdfast.pipeline.archive.policy import ArchivePolicy

    lag = config.archiver.lag_threshold
    return [
        ArchivePolicy(
            each.stream,
            destination_of(each, config),
            each.batch_size,
            each.batch_timeout,
            consumer,
            config.namespace,
            lag.events,
            lag.age,
            compaction_of(config.archiver.compaction),
        )
        for each in config.archive_streams
    ]


def archive_policy(
    config: Config, stream: str | None, destination: str | None, size: int, timeout: str, consumer: str
) -> ArchivePolicy:
    """What the flags have archived. Raises `InvalidInput` where one of them is missing."""
    from holdfast.pipeline.archive.policy import ArchivePolicy

    if stream is None or destination is None:
        raise InvalidInput("--stream and --destination go together; give both")
    lag = config.archiver.lag_threshold
    after = parse_duration(timeout, what="--batch-timeout")
    kept = compaction_of(config.archiver.compaction)
    return ArchivePolicy(
        stream, destination, size, after, consumer, config.namespace, lag.events, lag.age, kept
    )


def destinations(config: Config) -> list[str]:
    """Every archive of the configuration. Raises `InvalidInput` where there is none."""
    found = list(dict.fromkeys(destination_of(each, config) for each in config.archive_streams))
    if not found:
        raise InvalidInput("no archive is named: give --destination, or a --config with archiver: streams:")
    return found


def destination_of(stream: ArchiveStream, config: Config) -> str:
    """Where a stream goes, as the URL of an object store."""
    match stream.destination:
        case "s3":
            bucket = stream.bucket or f"{config.namespace}-archive"
            return f"s3://{bucket}/{stream.path or ''}".rstrip("/")
        case "folder":
            return str(stream.path)
        case "postgres":
            stores = [url for url in config.url if url.startswith("postgres")]
            if not stores:
                raise InvalidInput(
                    "destination 'postgres' means the store itself, which is none; write postgresql://…?table=name"
                )
            return f"{stores[0]}{'&' if '?' in stores[0] else '?'}table=archive"
        case url:
            return url


def streams_of(config: Config, destination: str) -> list[str]:
    """Which streams the configuration puts into an archive."""
    wanted = _normal_form(destination)
    return [
        each.stream for each in config.archive_streams if _normal_form(destination_of(each, config)) == wanted
    ]


def streams_elsewhere(config: Config, destination: str) -> list[str]:
    """Which streams the configuration puts into other archives. The embedded default does not count: it says
    nothing about an archive that somebody names."""
    from holdfast.config.load import ARCHIVER

    embedded = ARCHIVER["streams"][0]
    said = [each for each in config.archive_streams if each.path != embedded["path"]]
    wanted = _normal_form(destination)
    return [each.stream for each in said if _normal_form(destination_of(each, config)) != wanted]


def _normal_form(destination: str) -> object:
    """The same for all ways to write it."""
    from holdfast.pipeline.stores import folder_of

    folder = folder_of(destination)
    return destination.rstrip("/") if folder is None else folder.resolve()


def compaction_of(given: CompactionSection) -> CompactionSettings:
    """What the configuration says of compaction."""
    from holdfast.pipeline.upkeep import CompactionSettings

    return CompactionSettings(given.enabled, given.every, given.keep, given.file_size)


def plan_of(config: Config) -> IngestPlan:
    """What the configuration has ingested. Raises `InvalidInput` where that is nothing."""
    from holdfast.pipeline.ingest.plan import Flush, IngestPlan
    from holdfast.pipeline.ingest.validation import ValidationRule, ValidationRules
    from holdfast.pipeline.wal import WalSettings
    from holdfast.pipeline.warehouse import Column, Table, Tables

    given = config.ingest
    if not given.channels:
        raise InvalidInput("nothing to ingest: give --channel, or a --config with ingest: channels:")
    settings = WalSettings(**{name: getattr(given.wal, name) for name in type(given.wal).model_fields})
    tables = {
        pattern: Table(
            each.table,
            tuple(Column(name, c.path or f"$.{name}", c.type) for name, c in each.columns.items()),
        )
        for pattern, each in given.tables.items()
    }
    rules = {
        pattern: ValidationRule(each.payload, tuple(each.required), _schema(each.schema_file))
        for pattern, each in given.validation.items()
    }
    return IngestPlan(
        channels=tuple(given.channels),
        warehouse=given.warehouse,
        wal=settings,
        tables=Tables(tables, {name: each.schema for name, each in rules.items() if each.schema is not None}),
        rules=ValidationRules(rules),
        namespace=config.namespace,
        archives=_archives(config),
        compaction=compaction_of(given.compaction),
        max_rows=given.batch_rows,
        flush=Flush(given.flush.rows, given.flush.bytes, given.flush.every),
        freshness=given.freshness,
    )


def _archives(config: Config) -> tuple[str, ...]:
    """Where the configuration has channels archived."""
    with suppress(InvalidInput):  # none, or one that only the archiver has to know
        return tuple(destinations(config))
    return ()


def _schema(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text()
    except OSError as error:
        raise InvalidInput(f"schema_file {file!r} cannot be read: {error.strerror}") from None


def inputs_of(config: Config, urls: list[str], archive: str | None) -> Callable[[str], Inputs]:
    """A function from a channel to what is compared for it. Raises `NotFound` where `archive` is none."""
    if archive is not None:
        check_archive(archive)
    from holdfast.pipeline.reconcile.inputs import Inputs

    def inputs(channel: str) -> Inputs:
        streams = [each for each in config.archive_streams if selects(each.stream, channel)]
        destination = archive or (destination_of(streams[0], config) if streams else None)
        ingested = any(selects(pattern, channel) for pattern in config.ingest.channels)
        plan = plan_of(config) if ingested else None
        return Inputs(channel, tuple(urls), destination, plan=plan, namespace=config.namespace)

    return inputs


def check_archive(url: str, *, whole: bool = True) -> None:
    """Raises `NotFound` where no archiver has committed anything; where it need not be `whole`, written
    anything. A wrong path must not look like an archive in which all is well."""
    from holdfast.pipeline.archive.manifests import manifest_folder
    from holdfast.pipeline.stores import open_store

    store = open_store(url)
    if next(iter(store.list(manifest_folder() if whole else "")), None) is None:
        raise NotFound(f"there is no archive in {mask(store.url)}: it holds no manifest")


def check_wal(path: str) -> None:
    """Raises `NotFound` where the folder of a WAL is missing."""
    from holdfast.pipeline.stores import folder_of

    folder = folder_of(path)
    if folder is not None and not folder.is_dir():
        raise NotFound(f"there is no WAL in {folder.absolute()}: no ingest has written there")


def check_warehouse(url: str) -> None:
    """Raises `NotFound` where nothing was ever loaded."""
    from holdfast.pipeline.warehouse.contract import location_of

    kind, path = location_of(url)
    if kind == "duckdb":
        there = Path(path).expanduser().exists()
    else:
        from holdfast.pipeline.warehouse.delta_files import DeltaFiles

        there = bool(DeltaFiles(path).names())
    if not there:
        raise NotFound(
            f"there is no warehouse {mask(url)}; correct the name, or fill a new one with "
            "holdfast warehouse rebuild"
        )


@contextmanager
def failed_events(
    config: ConfigFile, wal: str | None, warehouse: str | None, *, existing: bool = False
) -> Iterator[FailedEvents]:
    """The failed events of a WAL, for the length of a block.

    The WAL must be there if it is named, or if it is said to be `existing`.
    """
    from holdfast.pipeline.failed.service import FailedEvents
    from holdfast.pipeline.stores import open_store
    from holdfast.pipeline.wal import Wal
    from holdfast.pipeline.warehouse import open_warehouse

    plan = plan_of(wal_config(config, {"ingest.wal.path": wal, "ingest.warehouse": warehouse}))
    if existing or wal is not None:
        check_wal(plan.wal.path)
    sink = open_warehouse(plan.warehouse, plan.tables)
    try:
        yield FailedEvents(Wal(open_store(plan.wal.path), plan.wal), sink, plan.tables, plan.rules.problem)
    finally:
        sink.close()


class PipelineAccess:
    """Failed records, traces and queries for a server, without a Spark session of its own."""

    def __init__(self, config: Config, urls: Sequence[str], records: FailedEvents | None) -> None:
        self._config, self._urls, self.records = config, list(urls), records

    def trace(self, event_id: str, channel: str | None, source: str | None) -> Sequence[EventTrace]:
        """As far as the jobs, the archive, the WAL and the warehouse tell; nothing is searched for."""
        from holdfast.pipeline.trace import TraceQuery, Tracer

        def refuse() -> NoReturn:
            raise NotFound(
                f"neither a consumer nor the warehouse knows an event {event_id!r}; "
                f"'holdfast trace {event_id}' searches the log and the archive for it"
            )

        tracer = Tracer(self._urls, inputs_of(self._config, self._urls, None), refuse)
        return tracer.trace(TraceQuery(event_id, channel, source))

    async def query(self, sql: str, *, rows: int, size: int, audit: bool) -> bytes:
        """On the warehouse of the configuration."""
        from holdfast.pipeline.query import QueryLimits, run_query

        return await run_query(
            self._config.ingest.warehouse, sql, QueryLimits(rows=rows, bytes=size), audit=audit
        )


@contextmanager
def pipeline_access(
    config: Config, file: Path | None, urls: Sequence[str]
) -> Iterator[PipelineAccess | None]:
    """The access of a configuration, for the length of a block; None where Spark is not installed."""
    from holdfast.config.load import has_spark

    if not has_spark():
        yield None
        return
    with ExitStack() as stack:
        records = stack.enter_context(failed_events(file, None, None)) if config.ingest.channels else None
        yield PipelineAccess(config, urls, records)
