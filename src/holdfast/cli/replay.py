"""`holdfast replay`: archived events back into a channel."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from holdfast import wiring
from holdfast.cli.archive import Master
from holdfast.cli.options import ConfigFile, Json, Urls, examples, flat
from holdfast.cli.output import say, write_json, write_table
from holdfast.cli.places import check_archive
from holdfast.model.names import check_name

From = Annotated[str, typer.Option("--from", metavar="URL", help="The archive.")]
Where = Annotated[
    str, typer.Option("--where", metavar="SQL", help="Which events: a condition on the columns.")
]
To = Annotated[str, typer.Option("--to", metavar="CHANNEL", help="The channel to publish to.")]
Again = Annotated[
    bool, typer.Option("--again", help="Also what the store may have forgotten, as new events.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be published.")]


def replay(
    source: From,
    where: Where,
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
