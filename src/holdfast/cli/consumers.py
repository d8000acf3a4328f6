"""`holdfast consumers`: who reads, how far behind, and a way to hold, name and remove them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.cli.dlq.following import carry_out
from holdfast.cli.dlq.options import By, Yes
from holdfast.cli.naming import DisplayName, set_display
from holdfast.cli.options import Channel, ConfigFile, Json, Urls, examples
from holdfast.cli.options import Consumer as ConsumerName
from holdfast.cli.output import say, write_json, write_pairs, write_table
from holdfast.cli.session import look_up
from holdfast.contracts import Backend, Consumer, ConsumerStats
from holdfast.deadletters import Filter, Request
from holdfast.model.errors import NotFound
from holdfast.model.job import State

app = typer.Typer(help="Look at worker consumers, name, pause, resume and remove them.", no_args_is_help=True)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")]
OfChannel = Annotated[str | None, typer.Argument(metavar="CHANNEL", help="Only this channel's.")]


@app.command("list", epilog=examples("holdfast consumers list", "holdfast consumers list orders --json"))
def list_(
    channel: OfChannel = None, urls: Urls = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """All worker consumers, of one channel or of all."""

    async def ask(store: Backend) -> list[Consumer]:
        if channel is not None and channel not in await store.channels():
            raise NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")
        return await store.consumers(channel)

    answers = look_up(urls, config, ask)
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
        return await store.consumer(channel, consumer), await store.consumer_stats(channel, consumer)

    found = look_up(urls, config, ask)
    kept, stats = found[0][0], together([stats for _, stats in found])
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
    carry_out(request, by, urls, config, None, dry_run=dry_run, yes=yes, as_json=as_json)


def _set_paused(
    channel: str, consumer: str, paused: bool, urls: Urls, config: ConfigFile, as_json: bool
) -> None:
    look_up(urls, config, lambda store: store.set_paused(channel, consumer, paused))
    if as_json:
        write_json({"channel": channel, "consumer": consumer, "paused": paused})
    else:
        say(f"{consumer} of {channel} is {'paused' if paused else 'working again'}")


def together(stats: Sequence[ConsumerStats]) -> ConsumerStats:
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
        "catching up": consumer.backfilling,
        **{str(state): stats.states.get(state, 0) for state in shown},
        "oldest ready": stats.oldest_ready,
        "next due": stats.next_due,
        **consumer.policy.to_json(),
    }


_SHOWN = (State.SCHEDULED, State.READY, State.LEASED, State.DONE, State.DEAD)
