"""Requeue, redrive, patch, purge and delete, each as an operation that is followed to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from holdfast.cli.dlq.options import (
    All,
    DryRun,
    ErrorClass,
    Fingerprint,
    Item,
    Items,
    Kinds,
    OfChannel,
    OfConsumer,
    Rate,
    Reason,
    Since,
    Text,
    Until,
    filter_of,
)
from holdfast.cli.dlq.progress import run_operation
from holdfast.cli.options import By, ConfigFile, Json, Urls, Yes, examples
from holdfast.cli.pipeline import WalPath
from holdfast.deadletters import Canary, Filter, OperationOptions, Request
from holdfast.model.duration import parse_duration
from holdfast.model.errors import InvalidInput

CanarySize = Annotated[
    int | None, typer.Option("--canary", metavar="N", help="Try so many first, and see how they do.")
]
Share = Annotated[
    float, typer.Option("--share", help="The share of the canary that must succeed for the rest to follow.")
]
Patience = Annotated[
    str, typer.Option("--patience", metavar="DURATION", help="How long the canary may take.")
]
Exhausted = Annotated[
    bool, typer.Option("--only-exhausted", help="Only what has used up all attempts of its consumer.")
]
Patch = Annotated[
    str, typer.Option("--patch", metavar="JSON|@FILE", help="A JSON Patch (RFC 6902), or a file with one.")
]


def requeue(
    by: By,
    items: Items = None,
    kinds: Kinds = None,
    channel: OfChannel = None,
    consumer: OfConsumer = None,
    reason: Reason = None,
    error_class: ErrorClass = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    text: Text = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    wal: WalPath = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make dead letters ready again, with fresh budgets, as fast as the store allows.

    Without --kind only jobs are meant: they go to the tail of their queue. Ingest records are loaded again;
    messages of dead-letter channels are published again where they came from, under an id that makes a repeat
    a duplicate.
    """
    chosen = _filter_unless_items(
        items,
        kinds=kinds or ["job"],
        channel=channel,
        consumer=consumer,
        reason=reason,
        error_class=error_class,
        fingerprint=fingerprint,
        since=since,
        until=until,
        text=text,
    )
    request = Request("requeue", chosen, tuple(items or ()), all=everything)
    run_operation(request, by, urls, config, wal, dry_run=dry_run, yes=yes, as_json=as_json)


def redrive(
    by: By,
    channel: OfChannel = None,
    consumer: OfConsumer = None,
    reason: Reason = None,
    error_class: ErrorClass = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    text: Text = None,
    everything: All = False,
    rate: Rate = None,
    canary: CanarySize = None,
    share: Share = 0.9,
    patience: Patience = "10m",
    dry_run: DryRun = False,
    yes: Yes = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make dead jobs ready again with care: at a rate, and behind a canary.

    With --canary the first N are tried; the rest follows only if enough of them succeed. Otherwise it stops,
    says why, and ends with 1.
    """
    chosen = filter_of(
        kinds=["job"],
        channel=channel,
        consumer=consumer,
        reason=reason,
        error_class=error_class,
        fingerprint=fingerprint,
        since=since,
        until=until,
        text=text,
    )
    tried = None if canary is None else Canary(canary, share, parse_duration(patience, what="--patience"))
    request = Request("redrive", chosen, options=OperationOptions(rate=rate, canary=tried), all=everything)
    run_operation(request, by, urls, config, None, dry_run=dry_run, yes=yes, as_json=as_json)


def patch(
    by: By,
    patch: Patch,
    items: Items = None,
    channel: OfChannel = None,
    consumer: OfConsumer = None,
    reason: Reason = None,
    error_class: ErrorClass = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    text: Text = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Change the data of dead jobs and make them ready again. The log keeps the original.

    The difference is shown before it asks. Where the patch does not fit, the job stays as it is.
    """
    chosen = _filter_unless_items(
        items,
        kinds=["job"],
        channel=channel,
        consumer=consumer,
        reason=reason,
        error_class=error_class,
        fingerprint=fingerprint,
        since=since,
        until=until,
        text=text,
    )
    options = OperationOptions(patch=_patch(patch))
    request = Request("patch", chosen, tuple(items or ()), options, all=everything)
    run_operation(request, by, urls, config, None, dry_run=dry_run, yes=yes, as_json=as_json)


def purge(
    by: By,
    items: Items = None,
    kinds: Kinds = None,
    channel: OfChannel = None,
    consumer: OfConsumer = None,
    reason: Reason = None,
    error_class: ErrorClass = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    text: Text = None,
    everything: All = False,
    only_exhausted: Exhausted = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wal: WalPath = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Remove dead letters for good, chunk by chunk. Each job leaves a record of its purge.

    Without --kind only jobs are meant. An ingest record becomes `abandoned`. Messages of dead-letter channels
    leave with their retention, and cannot be purged.
    """
    chosen = _filter_unless_items(
        items,
        kinds=kinds or ["job"],
        channel=channel,
        consumer=consumer,
        reason=reason,
        error_class=error_class,
        fingerprint=fingerprint,
        since=since,
        until=until,
        text=text,
    )
    options = OperationOptions(rate=rate, only_exhausted=only_exhausted)
    request = Request("purge", chosen, tuple(items or ()), options, all=everything)
    run_operation(request, by, urls, config, wal, dry_run=dry_run, yes=yes, as_json=as_json)


def delete(
    item: Item,
    by: By,
    only_exhausted: Exhausted = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    wal: WalPath = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Remove one dead letter for good. Ends with 1 where it is not dead any more."""
    request = Request("delete", items=(item,), options=OperationOptions(only_exhausted=only_exhausted))
    run_operation(request, by, urls, config, wal, dry_run=dry_run, yes=yes, as_json=as_json)


def _filter_unless_items(items: list[str] | None, **options: Any) -> Filter | None:
    """The filter, or None where items are named."""
    chosen = filter_of(**options)
    if items and not chosen.empty:
        raise InvalidInput("give items or a filter, not both")
    return None if items else chosen


def _patch(text: str) -> tuple[dict[str, Any], ...]:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"--patch {text}: the file cannot be read: {error}") from None
    try:
        steps = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"--patch is no JSON: {error}") from None
    if not isinstance(steps, list):
        raise InvalidInput('--patch is no list; write \'[{"op": "replace", "path": "/total", "value": 1}]\'')
    return tuple(steps)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog=examples(
            "holdfast dlq requeue job:orders:billing:17",
            "holdfast dlq requeue --channel orders --consumer billing --fingerprint 5a1f0c… --yes",
            "holdfast dlq requeue --all --dry-run",
        )
    )(requeue)
    app.command(
        epilog=examples(
            "holdfast dlq redrive --channel orders --consumer billing --dry-run",
            "holdfast dlq redrive --channel orders --rate 50 --canary 20 --share 0.95 --yes",
        )
    )(redrive)
    app.command(
        epilog=examples(
            "holdfast dlq patch job:orders:billing:17"
            ' --patch \'[{"op": "replace", "path": "/total", "value": 1}]\'',
            "holdfast dlq patch --channel orders --fingerprint 5a1f0c… --patch @fix.json --dry-run",
        )
    )(patch)
    app.command(
        epilog=examples(
            "holdfast dlq purge --channel orders --consumer billing --reason expired",
            "holdfast dlq purge --until 2030-01-31T09:00:00Z --only-exhausted --yes",
        )
    )(purge)
    app.command(epilog=examples("holdfast dlq delete job:orders:billing:17 --yes"))(delete)
