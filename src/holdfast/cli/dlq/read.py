"""Reading: counts, the list, one dead letter, clusters."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.dlq.options import (
    ErrorClass,
    Fingerprint,
    Item,
    Kinds,
    Limit,
    OfChannel,
    OfConsumer,
    Reason,
    Since,
    Text,
    Until,
    filter_of,
)
from holdfast.cli.options import ConfigFile, Json, Urls, examples
from holdfast.cli.output import plain, say, write_json, write_pairs, write_table
from holdfast.cli.output import show as shown
from holdfast.cli.pipeline import WalPath
from holdfast.cli.session import with_deadletters
from holdfast.deadletters import Detail, parse_item
from holdfast.deadletters import Item as Letter

After = Annotated[str | None, typer.Option("--after", help="Go on where the page before ended.")]
_NO_KIND: tuple[str, ...] = ()


def status(urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """How many dead letters every consumer has, exactly, by reason."""
    found = with_deadletters(urls, config, None, _NO_KIND, lambda letters: letters.status())
    if as_json:
        write_json(found)
        return
    rows = [(each.channel_name, each.consumer_name, each.dead, each.reasons) for each in found]
    write_table(["CHANNEL", "CONSUMER", "DEAD", "BY REASON"], rows)


def list_(
    kinds: Kinds = None,
    channel: OfChannel = None,
    consumer: OfConsumer = None,
    reason: Reason = None,
    error_class: ErrorClass = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    text: Text = None,
    limit: Limit = 100,
    after: After = None,
    wal: WalPath = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Dead letters, the latest first: jobs, ingest records and messages of dead-letter channels."""
    chosen = filter_of(
        kinds=kinds,
        channel=channel,
        consumer=consumer,
        reason=reason,
        error_class=error_class,
        fingerprint=fingerprint,
        since=since,
        until=until,
        text=text,
    )
    page = with_deadletters(urls, config, wal, kinds or (), lambda it: it.find(chosen, after, limit))
    if as_json:
        write_json(page)
        return
    if page.items:
        write_deadletters(page.items)
    elif page.after is None:
        say("no dead letter")
    if page.after is not None:
        say(f"there may be more: add --after {page.after}")


def write_deadletters(letters: list[Letter]) -> None:
    """Dead letters as a table."""
    write_table(
        ["ITEM", "EVENT", "REASON", "ATTEMPTS", "DIED AT", "FINGERPRINT", "ERROR"],
        [(e.id, e.event_id, e.reason, e.attempts, e.died_at, e.fingerprint, e.error) for e in letters],
    )


def show(
    item: Item, wal: WalPath = None, urls: Urls = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Everything about one dead letter: its event, every attempt's error, and what a patch replaced."""
    kinds = (parse_item(item).kind,)
    detail = with_deadletters(urls, config, wal, kinds, lambda letters: letters.show(item))
    if as_json:
        write_json(detail)
    else:
        _describe(detail)


def _describe(detail: Detail) -> None:
    values = {name: value for name, value in plain(detail).items() if value not in (None, "", {}, [])}
    errors = values.pop("errors", [])
    for name in ("data", "original"):
        if name in values:
            values[name] = _compact(values[name])
    for error in errors:
        number = error.get("attempt", "?")
        values[f"error of attempt {number}"] = f"{shown(error.get('at'))}: {error.get('error')}"
    write_pairs({name.replace("_", " "): value for name, value in values.items()})


def _compact(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def clusters(
    channel: OfChannel = None,
    consumer: OfConsumer = None,
    limit: Limit = 20,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Dead letters by what went wrong: errors that differ only in numbers, ids, paths or addresses."""
    chosen = filter_of(channel=channel, consumer=consumer).where
    found = with_deadletters(
        urls,
        config,
        None,
        _NO_KIND,
        lambda letters: letters.clusters(chosen.channel, chosen.consumer, limit),
    )
    if as_json:
        write_json(found)
        return
    rows = [(c.count, c.fingerprint, c.channel, c.consumer, c.pattern, c.sample.died_at) for c in found]
    write_table(["DEAD", "FINGERPRINT", "CHANNEL", "CONSUMER", "ERROR", "LATEST"], rows)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=examples("holdfast dlq status", "holdfast dlq status --json"))(status)
    app.command(
        "list",
        epilog=examples(
            "holdfast dlq list --channel orders --consumer billing",
            "holdfast dlq list --reason max_attempts --since 2030-01-31T09:00:00Z --json",
            "holdfast dlq list --kind ingest --config holdfast.yaml",
        ),
    )(list_)
    app.command(epilog=examples("holdfast dlq show job:orders:billing:17"))(show)
    app.command(epilog=examples("holdfast dlq clusters", "holdfast dlq clusters --channel orders"))(clusters)
