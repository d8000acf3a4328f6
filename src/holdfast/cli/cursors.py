"""`holdfast cursors`: stream consumers such as the archiver, how far they are, and a way to remove them."""

from __future__ import annotations

import typer

from holdfast.cli.consumers import DryRun, OfChannel
from holdfast.cli.dlq.options import By, Yes
from holdfast.cli.dlq.session import with_letters
from holdfast.cli.options import Channel, ConfigFile, Consumer, Json, Urls, examples
from holdfast.cli.output import say, write_json, write_table
from holdfast.deadletters import DeadLetters, Operations
from holdfast.upkeep.streams import Stream, remove_stream, streams, warning

app = typer.Typer(help="Look at stream consumers, and remove those that are gone.", no_args_is_help=True)


@app.command("list", epilog=examples("holdfast cursors list", "holdfast cursors list orders --json"))
def list_(
    channel: OfChannel = None, urls: Urls = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """All stream consumers, and how many events retention keeps for each of them."""

    async def work(letters: DeadLetters) -> list[Stream]:
        return await streams(await letters.stores(), channel)

    _print(with_letters(urls, config, None, (), work), as_json)


@app.command(
    epilog=examples(
        "holdfast cursors remove orders archiver --dry-run", "holdfast cursors remove orders archiver --yes"
    )
)
def remove(
    channel: Channel,
    consumer: Consumer,
    by: By,
    dry_run: DryRun = False,
    yes: Yes = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Remove a stream consumer that is gone for good: retention waits for it no longer.

    What it has not read may be trimmed from then on. Stop whoever reads by it first: an archiver or an ingest
    that goes on makes it anew, at the beginning of what the log still has.
    """

    async def look(letters: DeadLetters) -> list[Stream]:
        return await streams(await letters.stores(), channel, consumer)

    async def work(letters: DeadLetters) -> None:
        await remove_stream(await letters.stores(), channel, consumer)
        await (await Operations(letters).audit()).did(by, "remove cursor", f"{channel}/{consumer}")

    found = with_letters(urls, config, None, (), look)
    if dry_run:
        _print(found, as_json)
        return
    if not yes:
        typer.confirm(f"{warning(found)}. Go on?", abort=True, err=True)
    with_letters(urls, config, None, (), work)
    if as_json:
        write_json({"channel": channel, "consumer": consumer, "behind": sum(each.behind for each in found)})
    else:
        say(f"{consumer} of {channel} was removed")


def _print(found: list[Stream], as_json: bool) -> None:
    if as_json:
        write_json(found)
    else:
        columns = ["CHANNEL", "CONSUMER", "PARTITION", "POSITION", "MOVED AT", "BEHIND", "OLDEST"]
        write_table(columns, found)
