"""From the configuration, or from flags, to what the archiver is to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.config.embedded import ARCHIVER
from holdfast.model.duration import parse_duration
from holdfast.model.errors import InvalidInput

if TYPE_CHECKING:  # Arrow takes longer to import than most commands to run
    from holdfast.config.config import Config
    from holdfast.config.sections import ArchiveStream, Compaction
    from holdfast.pipeline.archive.policy import ArchivePolicy
    from holdfast.pipeline.upkeep import CompactionSettings


def policies(config: Config, consumer: str) -> list[ArchivePolicy]:
    """What the configuration wants to have archived."""
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
            settings_of(config.archiver.compaction),
        )
        for each in config.archive_streams
    ]


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


def destinations(config: Config) -> list[str]:
    """Every archive of the configuration."""
    found = list(dict.fromkeys(destination_of(each, config) for each in config.archive_streams))
    if not found:
        raise InvalidInput("no archive is named: give --destination, or a --config with archiver: streams:")
    return found


def streams_of(config: Config, destination: str) -> list[str]:
    """Which streams the configuration puts into an archive."""
    wanted = _place(destination)
    return [each.stream for each in config.archive_streams if _place(destination_of(each, config)) == wanted]


def streams_elsewhere(config: Config, destination: str) -> list[str]:
    """Which streams the configuration puts into other archives. What holds where nobody says anything tells
    nothing of an archive that somebody names."""
    embedded = ARCHIVER["streams"][0]
    said = [each for each in config.archive_streams if each.path != embedded["path"]]
    wanted = _place(destination)
    return [each.stream for each in said if _place(destination_of(each, config)) != wanted]


def _place(destination: str) -> object:
    """The same for all ways to write it."""
    from holdfast.pipeline.stores.address import folder_of

    folder = folder_of(destination)
    return destination.rstrip("/") if folder is None else folder.resolve()


def from_flags(
    config: Config, stream: str | None, destination: str | None, size: int, timeout: str, consumer: str
) -> ArchivePolicy:
    """What the flags want to have archived."""
    from holdfast.pipeline.archive.policy import ArchivePolicy

    if stream is None or destination is None:
        raise InvalidInput("--stream and --destination go together; give both")
    lag = config.archiver.lag_threshold
    after = parse_duration(timeout, what="--batch-timeout")
    kept = settings_of(config.archiver.compaction)
    return ArchivePolicy(
        stream, destination, size, after, consumer, config.namespace, lag.events, lag.age, kept
    )


def settings_of(given: Compaction) -> CompactionSettings:
    """What the configuration says of compaction."""
    from holdfast.pipeline.upkeep import CompactionSettings

    return CompactionSettings(given.enabled, given.every, given.keep, given.file_size)
