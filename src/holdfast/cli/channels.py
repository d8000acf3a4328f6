"""`holdfast channels`: which there are, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from holdfast.bus.client import Bus
from holdfast.cli.options import Channel, Json, Urls, examples
from holdfast.cli.output import write_json, write_pairs, write_table
from holdfast.cli.session import ask_all, stores, with_bus
from holdfast.contracts import ChannelStats

app = typer.Typer(help="Look at channels.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list", epilog=examples("holdfast channels list", "holdfast channels list --json"))
def list_(urls: Urls = None, as_json: Json = False) -> None:
    """All channels, with their consumers."""
    found = with_bus(urls, _consumers_by_channel)
    if as_json:
        write_json([{"name": name, "consumers": consumers} for name, consumers in found.items()])
    else:
        write_table(["CHANNEL", "CONSUMERS"], found.items())


@app.command(epilog=examples("holdfast channels show orders"))
def show(channel: Channel, urls: Urls = None, as_json: Json = False) -> None:
    """One channel: its events, its latest publication and its consumers."""
    found = with_bus(urls, lambda bus: ask_all(bus, lambda store: store.channel_stats(channel)))
    stats = _together(found)
    if as_json:
        write_json(stats)
    else:
        write_pairs(
            {
                "channel": stats.name,
                "created": stats.created_at,
                "events": f"{stats.events:,}",
                "last published": stats.last_published,
                "consumers": stats.consumers,
            }
        )


async def _consumers_by_channel(bus: Bus) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for store in await stores(bus):
        found |= {name: found.get(name, set()) for name in await store.channels()}
        for consumer in await store.consumers():
            found.setdefault(consumer.channel, set()).add(consumer.name)
    return {name: sorted(found[name]) for name in sorted(found)}


def _together(stats: Sequence[ChannelStats]) -> ChannelStats:
    """The shares of all partitions as one channel."""
    published = [each.last_published for each in stats if each.last_published is not None]
    return ChannelStats(
        name=stats[0].name,
        created_at=min(each.created_at for each in stats),
        events=sum(each.events for each in stats),
        last_published=max(published, default=None),
        consumers=sorted({name for each in stats for name in each.consumers}),
    )
