"""`holdfast channels`: which there are, what is in them, and what people call them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from holdfast.bus.schemas import schema_of
from holdfast.cli.options import By, Channel, ConfigFile, Json, Urls, examples
from holdfast.cli.output import say, write_json, write_pairs, write_table
from holdfast.cli.session import ask_stores, with_deadletters
from holdfast.cli.worker import find
from holdfast.contracts import Backend, ChannelStats, Consumer
from holdfast.deadletters import DeadLetters, Operations
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.schema import MAX_SCHEMA, DeclaredSchema, Schema, fields, parse_schema

app = typer.Typer(
    help="Look at channels, name them, and declare their schemas.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
FIELDS = 1_000
"""How many fields of a schema are shown."""
DisplayName = Annotated[str, typer.Argument(metavar="TEXT", help="The name; empty takes it away.")]


@app.command("list", epilog=examples("holdfast channels list", "holdfast channels list --json"))
def list_(urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """All channels, with their consumers."""
    found = _consumers_by_channel(ask_stores(urls, config, _names))
    if as_json:
        write_json([{"name": name, "consumers": consumers} for name, consumers in found.items()])
    else:
        write_table(["CHANNEL", "CONSUMERS"], found.items())


@app.command(epilog=examples("holdfast channels show orders"))
def show(channel: Channel, urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """One channel: its events, its latest publication and its consumers."""
    stats = _merged_stats(ask_stores(urls, config, lambda store: store.channels.stats(channel)))
    if as_json:
        write_json(stats)
    else:
        write_pairs(
            {
                "channel": stats.name,
                "name": stats.display,
                "created": stats.created_at,
                "events": f"{stats.events:,}",
                "last published": stats.last_published,
                "consumers": stats.consumers,
            }
        )


@app.command(epilog=examples("holdfast channels name orders 'Order events'"))
def name(
    channel: Channel,
    text: DisplayName,
    by: By,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Give a channel a name for people."""
    set_display(channel, None, text, by, urls, config, as_json)


@app.command(
    epilog=examples(
        "holdfast channels schema orders",
        "holdfast channels schema orders --set shop:Order",
        "holdfast channels schema orders --set order.schema.json --force",
    )
)
def schema(
    channel: Channel,
    by: By,
    new: Annotated[
        str | None,
        typer.Option("--set", metavar="FILE|MODULE:TYPE", help="Declare this JSON Schema, or this type's."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also where it refuses what the one before allowed.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove it; the next one is compared with nothing.")
    ] = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """What the data of a channel looks like: show, declare or remove its schema.

    A schema that refuses data which the one before allowed is refused, with the reasons, unless forced.
    """
    if remove and new is not None:
        raise InvalidInput("--set and --remove exclude each other; give one of them")
    wanted = None if new is None else _schema(new)

    async def work(letters: DeadLetters) -> DeclaredSchema | None:
        schemas, audit = await letters.bus.schemas(), await Operations(letters).audit()
        if wanted is not None:
            await letters.bus.create_channel(channel)
            made = await schemas.declare(channel, wanted, force=force)
            await audit.did(by, "put schema", channel, f"version {made.version}" + " by force" * force)
            return made
        found = await schemas.get(channel) if not remove else None
        if found is None and not (remove and await schemas.remove(channel)):
            raise NotFound(f"no schema was declared for channel {channel!r}; declare one with --set")
        if remove:
            await audit.did(by, "remove schema", channel)
        return found

    _print_schema(channel, with_deadletters(urls, config, None, (), work), as_json)


def _schema(text: str) -> Schema:
    """The JSON Schema in a file, or that of a type."""
    path = Path(text)
    if path.is_file():
        try:
            return parse_schema(path.read_bytes()[: MAX_SCHEMA + 1])
        except OSError as error:
            raise InvalidInput(f"file {text!r} cannot be read: {error.strerror}") from None
    if ":" not in text:
        raise InvalidInput(f"there is no file {text!r}; write a file's name, or MODULE:TYPE as in shop:Order")
    found = find(text, "type; write MODULE:TYPE, as in shop:Order")
    if found is None:
        raise InvalidInput(f"{text!r} names no type: the module has no such name")
    return schema_of(found)


def _print_schema(channel: str, found: DeclaredSchema | None, as_json: bool) -> None:
    if as_json:
        write_json(found)
    elif found is None:
        say(f"channel {channel} has no schema any more")
    else:
        say(
            f"version {found.version} of the schema of {channel}, since {found.changed_at:%Y-%m-%d %H:%M} UTC"
        )
        named, left = fields(found.schema, FIELDS)
        rows = [(each.name, each.type, "yes" if each.required else "no") for each in named]
        write_table(["FIELD", "TYPE", "REQUIRED"], rows)
        if left:
            say(f"{left} more fields; --json shows all")


async def _names(store: Backend) -> tuple[list[str], list[Consumer]]:
    return await store.channels.names(), await store.channels.consumers()


def _consumers_by_channel(answers: Sequence[tuple[list[str], list[Consumer]]]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {name: set() for names, _ in answers for name in names}
    for _, consumers in answers:
        for consumer in consumers:
            found[consumer.channel].add(consumer.name)
    return {name: sorted(found[name]) for name in sorted(found)}


def _merged_stats(stats: Sequence[ChannelStats]) -> ChannelStats:
    """The shares of all partitions as one channel."""
    published = [each.last_published for each in stats if each.last_published is not None]
    return ChannelStats(
        name=stats[0].name,
        created_at=min(each.created_at for each in stats),
        events=sum(each.events for each in stats),
        last_published=max(published, default=None),
        consumers=sorted({name for each in stats for name in each.consumers}),
        display=next((each.display for each in stats if each.display), ""),
    )


def set_display(
    channel: str, consumer: str | None, text: str, by: str, urls: Urls, config: ConfigFile, as_json: bool
) -> None:
    """Set it wherever the channel or the consumer is; `NotFound` where no store knows it."""

    async def work(letters: DeadLetters) -> None:
        missing, known = None, 0
        for store in await letters.stores():
            try:
                await store.channels.set_display(channel, consumer, text)
                known += 1
            except NotFound as error:
                missing = error
        if not known and missing is not None:
            raise missing
        target = channel if consumer is None else f"{channel}/{consumer}"
        await (await Operations(letters).audit()).did(by, "name", target)

    with_deadletters(urls, config, None, (), work)
    if as_json:
        write_json({"channel": channel, "consumer": consumer, "name": text})
    else:
        what = channel if consumer is None else f"{consumer} of {channel}"
        say(f"{what} is called {text!r}" if text else f"{what} has no other name")
