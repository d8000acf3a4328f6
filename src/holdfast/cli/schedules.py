"""`holdfast schedules`: publish an event at every tick; look at schedules, pause, run and remove them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer

from holdfast.bus.client import Bus
from holdfast.bus.schedules import DEFAULT_MISSED, DEFAULT_MOST
from holdfast.cli.options import By, ConfigFile, Json, Urls, Yes, examples
from holdfast.cli.output import say, show, write_json, write_line, write_pairs, write_table
from holdfast.cli.publish import Header, Key, Priority, Type, parse_data, parse_headers
from holdfast.cli.session import with_bus
from holdfast.deadletters.audit import Audit
from holdfast.deadletters.payloads import readable
from holdfast.model.event import DEFAULT_TYPE
from holdfast.upkeep.schedules import Schedule
from holdfast.upkeep.timing import zone

T = TypeVar("T")

app = typer.Typer(
    help="Publish an event at every tick of a clock, once each; look at, pause, run and remove schedules.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
OfChannel = Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel that it publishes to.")]
Only = Annotated[str | None, typer.Argument(metavar="CHANNEL", help="Only this channel's.")]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="DATA", help="What is published: JSON, or @FILE for its bytes."),
]
Cron = Annotated[
    str | None,
    typer.Option("--cron", metavar="FIELDS", help="Minute hour day month weekday, such as '0 3 * * *'."),
]
Every = Annotated[str | None, typer.Option("--every", metavar="TIME", help="Such as 15m; at least 1s.")]
Zone = Annotated[str | None, typer.Option("--tz", help="The time zone of --cron. Default: UTC.")]
Jitter = Annotated[
    str, typer.Option("--jitter", metavar="TIME", help="Delay each tick by up to so much, always the same.")
]
Missed = Annotated[
    str,
    typer.Option("--missed", help="Ticks while nobody kept time: skip, once (the latest) or all of them."),
]
MaxMissed = Annotated[int, typer.Option("--max-missed", help="With --missed all: at most so many.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the next ten ticks, and change nothing.")]
RunId = Annotated[str | None, typer.Option("--id", help="Asking again with the same id changes nothing.")]


@app.command("list", epilog=examples("holdfast schedules list", "holdfast schedules list reports --json"))
def list_(channel: Only = None, urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """All schedules, of one channel or of all, the next one that is due first."""
    found = with_bus(urls, config, lambda bus: bus.schedules(channel))
    if as_json:
        write_json([_described(each) for each in found])
    else:
        columns = ["NAME", "CHANNEL", "WHEN", "NEXT", "LAST", "MISSED", "STATE"]
        write_table(columns, [_row(each) for each in found])


@app.command(
    epilog=examples(
        "holdfast schedules add nightly reports --cron '0 3 * * *' --tz Europe/Berlin --data '{\"n\": 1}'",
        "holdfast schedules add beat health --every 15m --jitter 30s",
        "holdfast schedules add nightly reports --cron '0 3 * * *' --dry-run",
    )
)
def add(
    name: Name,
    channel: OfChannel,
    by: By,
    cron: Cron = None,
    every: Every = None,
    tz: Zone = None,
    data: Data = None,
    type_: Type = DEFAULT_TYPE,
    key: Key = None,
    header: Header = None,
    priority: Priority = 0,
    jitter: Jitter = "0s",
    missed: Missed = DEFAULT_MISSED,
    max_missed: MaxMissed = DEFAULT_MOST,
    dry_run: DryRun = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make a schedule, or give it another definition, and print its next ten ticks.

    What is left out has its default. Workers and 'holdfast up' keep time: one of them must run.
    """
    definition: dict[str, Any] = {
        "cron": cron,
        "every": every,
        "tz": tz,
        "data": parse_data(data),
        "type": type_,
        "key": key,
        "headers": parse_headers(header or []),
        "priority": priority,
        "jitter": jitter,
        "missed": missed,
        "max_missed": max_missed,
    }

    async def work(bus: Bus) -> tuple[Schedule, list[datetime]]:
        made = await bus.schedule(name, channel, **definition)
        return made, await bus.scheduling.upcoming(made)

    if dry_run:
        ticks = with_bus(urls, config, lambda bus: bus.scheduling.preview(name, channel, **definition))
        _write_ticks(ticks, tz, as_json)
        return
    made, ticks = with_bus(urls, config, _audited(by, "put", name, channel, work))
    if as_json:
        write_json(_described(made, ticks))
    else:
        say(f"{name} of {channel} {'is paused' if made.paused else 'ticks at'}")
        _write_ticks(ticks, tz, as_json)


@app.command(epilog=examples("holdfast schedules preview --cron '30 2 * * *' --tz Europe/Berlin"))
def preview(
    cron: Cron = None,
    every: Every = None,
    tz: Zone = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """The next ten ticks of a cron expression or an interval. Nothing is stored."""
    definition = {"cron": cron, "every": every, "tz": tz}
    ticks = with_bus(urls, config, lambda bus: bus.scheduling.preview("preview", "preview", **definition))
    _write_ticks(ticks, tz, as_json)


@app.command("show", epilog=examples("holdfast schedules show nightly reports"))
def show_(
    name: Name, channel: OfChannel, urls: Urls = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """One schedule: what it publishes, what became of its ticks, and its next ten."""

    async def work(bus: Bus) -> tuple[Schedule, list[datetime]]:
        found = await bus.scheduling.get(name, channel)
        return found, await bus.scheduling.upcoming(found)

    found, ticks = with_bus(urls, config, work)
    if as_json:
        write_json(_described(found, ticks))
    else:
        write_pairs({**found.to_json(), **readable("data", found.content.data)})
        say("ticks at")
        _write_ticks(ticks, found.timing.tz, as_json)


@app.command(epilog=examples("holdfast schedules pause nightly reports"))
def pause(
    name: Name,
    channel: OfChannel,
    by: By,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Publish no more ticks until it is resumed. Those of that time are not made up for."""
    with_bus(
        urls, config, _audited(by, "pause", name, channel, lambda bus: bus.pause_schedule(name, channel))
    )
    _write_done(name, channel, "paused", as_json)


@app.command(epilog=examples("holdfast schedules resume nightly reports"))
def resume(
    name: Name,
    channel: OfChannel,
    by: By,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Go on with the first tick after now."""
    with_bus(
        urls, config, _audited(by, "resume", name, channel, lambda bus: bus.resume_schedule(name, channel))
    )
    _write_done(name, channel, "resumed", as_json)


@app.command(epilog=examples("holdfast schedules run nightly reports --id 2030-01-31"))
def run(
    name: Name,
    channel: OfChannel,
    by: By,
    run_id: RunId = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Publish what a tick would, now, also of a paused one. Its ticks stay as they are."""
    work = _audited(by, "run", name, channel, lambda bus: bus.run_schedule(name, channel, id=run_id))
    receipt = with_bus(urls, config, work)
    if as_json:
        write_json(receipt)
    else:
        write_line(f"{receipt.id} {receipt.position}{' duplicate' if receipt.duplicate else ''}")


@app.command(epilog=examples("holdfast schedules remove nightly reports --yes"))
def remove(
    name: Name,
    channel: OfChannel,
    by: By,
    yes: Yes = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Remove a schedule for good. What it has published stays."""
    if not yes:
        typer.confirm(f"{name} of {channel} will publish no more. Go on?", abort=True, err=True)
    with_bus(
        urls, config, _audited(by, "remove", name, channel, lambda bus: bus.remove_schedule(name, channel))
    )
    _write_done(name, channel, "removed", as_json)


def _audited(
    by: str, what: str, name: str, channel: str, work: Callable[[Bus], Awaitable[T]]
) -> Callable[[Bus], Awaitable[T]]:
    """The work, and a note of who did it."""

    async def do(bus: Bus) -> T:
        done = await work(bus)
        first = bus.partitions.all[0]
        await Audit(first.backend, first.namespace).did(by, f"{what} schedule", f"{channel}/{name}")
        return done

    return do


def _write_done(name: str, channel: str, state: str, as_json: bool) -> None:
    if as_json:
        write_json({"name": name, "channel": channel, "state": state})
    else:
        say(f"{name} of {channel} is {state}")


def _write_ticks(ticks: Sequence[datetime], tz: str | None, as_json: bool) -> None:
    """In the schedule's own time, and in UTC where that is another one."""
    if as_json:
        write_json({"ticks": ticks})
        return
    local = None if tz in (None, "UTC") else zone(tz)
    for tick in ticks:
        there = "" if local is None else f"  {show(tick.astimezone(local))}"
        write_line(f"{show(tick)}{there}")


def _described(schedule: Schedule, ticks: Sequence[datetime] | None = None) -> dict[str, Any]:
    shown = {**schedule.to_json(), **readable("data", schedule.content.data)}
    return shown if ticks is None else {**shown, "upcoming": ticks}


def _row(schedule: Schedule) -> tuple[object, ...]:
    said = schedule.to_json()
    state = "paused" if schedule.paused else schedule.error or "ok"
    return schedule.name, schedule.channel, schedule.when, said["due"], schedule.last, schedule.missed, state
