"""`holdfast consumers` and `holdfast cursors`: who reads, how far behind; pause, name, empty, remove them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.cli.channels import DisplayName, set_display
from holdfast.cli.dlq.progress import run_operation
from holdfast.cli.options import By, Channel, ConfigFile, Json, Urls, Yes, examples
from holdfast.cli.options import Consumer as ConsumerName
from holdfast.cli.output import say, write_json, write_pairs, write_table
from holdfast.cli.session import ask_stores, with_deadletters
from holdfast.contracts import Backend, Consumer, ConsumerStats
from holdfast.deadletters import DeadLetters, Filter, Operations, Request
from holdfast.model.errors import NotFound
from holdfast.model.states import State
from holdfast.upkeep.retention import Stream, remove_stream, streams, warning

app = typer.Typer(
    help="Look at worker consumers, name, pause, resume, empty and remove them.", no_args_is_help=True
)
cursors = typer.Typer(help="Look at stream consumers, and remove those that are gone.", no_args_is_help=True)
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")]
OfChannel = Annotated[str | None, typer.Argument(metavar="CHANNEL", help="Only this channel's.")]
_SHOWN = (State.SCHEDULED, State.READY, State.LEASED, State.DONE, State.DEAD)


@app.command("list", epilog=examples("holdfast consumers list", "holdfast consumers list orders --json"))
def list_(
    channel: OfChannel = None, urls: Urls = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """All worker consumers, of one channel or of all."""

    async def ask(store: Backend) -> list[Consumer]:
        if channel is not None and channel not in await store.channels.names():
            raise NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")
        return await store.channels.consumers(channel)

    answers = ask_stores(urls, config, ask)
    found = list({(each.channel, each.name): each for answer in answers for each in answer}.values())
    if as_json:
        write_json(found)
    else:
        write_table(
            ["CHANNEL", "CONSUMER", "PAUSED", "LEASE", "ATTEMPTS", "ORDERED"],
            [
                (
                    c.channel,
                    c.name,
                    c.paused,
                    c.policy.lease,
                    c.policy.to_json()["max_attempts"],
                    c.policy.ordered,
                )
                for c in found
            ],
        )


@app.command(epilog=examples("holdfast consumers show orders billing"))
def show(
    channel: Channel,
    consumer: ConsumerName,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """One consumer: its jobs by state, what waits longest, what comes next, and its policy."""

    async def ask(store: Backend) -> tuple[Consumer, ConsumerStats]:
        return await store.channels.consumer(channel, consumer), await store.channels.consumer_stats(
            channel, consumer
        )

    found = ask_stores(urls, config, ask)
    kept, stats = found[0][0], merged_stats([stats for _, stats in found])
    if as_json:
        write_json({"consumer": kept, "stats": stats})
    else:
        write_pairs(_described(kept, stats))


@app.command(epilog=examples("holdfast consumers pause orders billing"))
def pause(
    channel: Channel,
    consumer: ConsumerName,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Hand out no more jobs. Leases that run go on, and publishing goes on."""
    _set_paused(channel, consumer, True, urls, config, as_json)


@app.command(epilog=examples("holdfast consumers resume orders billing"))
def resume(
    channel: Channel,
    consumer: ConsumerName,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Hand out jobs again."""
    _set_paused(channel, consumer, False, urls, config, as_json)


@app.command(epilog=examples("holdfast consumers name orders billing 'Billing'"))
def name(
    channel: Channel,
    consumer: ConsumerName,
    text: DisplayName,
    by: By,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Give a consumer a name for people."""
    set_display(channel, consumer, text, by, urls, config, as_json)


@app.command(
    epilog=examples(
        "holdfast consumers remove orders billing --dry-run", "holdfast consumers remove orders billing --yes"
    )
)
def remove(
    channel: Channel,
    consumer: ConsumerName,
    by: By,
    dry_run: DryRun = False,
    yes: Yes = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Remove a consumer for good, with its jobs, its dead letters, its history and its counts.

    It gets no work from the first step on. The events stay in their channel.
    """
    request = Request("remove_consumer", Filter.of(kinds=["job"], channel=channel, consumer=consumer))
    run_operation(request, by, urls, config, None, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command(
    epilog=examples(
        "holdfast consumers empty orders billing --dry-run", "holdfast consumers empty orders billing --yes"
    )
)
def empty(
    channel: Channel,
    consumer: ConsumerName,
    by: By,
    dry_run: DryRun = False,
    yes: Yes = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Cancel every job of a consumer that waits, ready or scheduled, as it is when this begins.

    Leased jobs go on, and what is published later is delivered. The events stay in their channel.
    """
    request = Request("empty_consumer", Filter.of(kinds=["job"], channel=channel, consumer=consumer))
    run_operation(request, by, urls, config, None, dry_run=dry_run, yes=yes, as_json=as_json)


def _set_paused(
    channel: str, consumer: str, paused: bool, urls: Urls, config: ConfigFile, as_json: bool
) -> None:
    ask_stores(urls, config, lambda store: store.channels.set_paused(channel, consumer, paused))
    if as_json:
        write_json({"channel": channel, "consumer": consumer, "paused": paused})
    else:
        say(f"{consumer} of {channel} is {'paused' if paused else 'working again'}")


def merged_stats(stats: Sequence[ConsumerStats]) -> ConsumerStats:
    """The shares of all partitions as one consumer."""
    states = {state: sum(each.states.get(state, 0) for each in stats) for state in State}
    return ConsumerStats(
        states={state: count for state, count in states.items() if count},
        oldest_ready=min((each.oldest_ready for each in stats if each.oldest_ready), default=None),
        next_due=min((each.next_due for each in stats if each.next_due), default=None),
    )


def _described(consumer: Consumer, stats: ConsumerStats) -> dict[str, Any]:
    shown = [state for state in State if state in _SHOWN or state in stats.states]
    return {
        "consumer": f"{consumer.name} of {consumer.channel}",
        "name": consumer.display,
        "created": consumer.created_at,
        "paused": consumer.paused,
        **{str(state): stats.states.get(state, 0) for state in shown},
        "oldest ready": stats.oldest_ready,
        "next due": stats.next_due,
        **consumer.policy.to_json(),
    }


@cursors.command("list", epilog=examples("holdfast cursors list", "holdfast cursors list orders --json"))
def list_cursors(
    channel: OfChannel = None, urls: Urls = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """All stream consumers, and how many events retention keeps for each of them."""

    async def work(letters: DeadLetters) -> list[Stream]:
        return await streams(await letters.stores(), channel)

    _print_cursors(with_deadletters(urls, config, None, (), work), as_json)


@cursors.command(
    "remove",
    epilog=examples(
        "holdfast cursors remove orders archiver --dry-run",
        "holdfast cursors remove orders archiver --yes",
    ),
)
def remove_cursor(
    channel: Channel,
    consumer: ConsumerName,
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

    found = with_deadletters(urls, config, None, (), look)
    if dry_run:
        _print_cursors(found, as_json)
        return
    if not yes:
        typer.confirm(f"{warning(found)}. Go on?", abort=True, err=True)
    with_deadletters(urls, config, None, (), work)
    if as_json:
        write_json({"channel": channel, "consumer": consumer, "behind": sum(each.behind for each in found)})
    else:
        say(f"{consumer} of {channel} was removed")


def _print_cursors(found: list[Stream], as_json: bool) -> None:
    if as_json:
        write_json(found)
    else:
        columns = ["CHANNEL", "CONSUMER", "PARTITION", "POSITION", "MOVED AT", "BEHIND", "OLDEST"]
        write_table(columns, found)
