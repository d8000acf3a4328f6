"""`holdfast jobs`: find an event's jobs and set them right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.bus.client import Bus
from holdfast.cli.options import By, Channel, ConfigFile, Consumer, EventId, Json, Source, Urls, examples
from holdfast.cli.output import plain, say, show, write_json, write_line, write_pairs, write_table
from holdfast.cli.session import ask_stores, stores, with_bus
from holdfast.model.errors import NotFound
from holdfast.model.event import DEFAULT_SOURCE
from holdfast.model.job import JobRecord
from holdfast.model.states import LIVE, State

app = typer.Typer(help="Find an event's jobs and set them right.", no_args_is_help=True)

Found = list[tuple[int, JobRecord]]
Limit = Annotated[int, typer.Option(min=1, help="Show at most so many.")]
OfConsumer = Annotated[str | None, typer.Option("--consumer", help="Only this consumer's job.")]


@app.command(epilog=examples("holdfast jobs stuck", "holdfast jobs stuck --limit 10 --json"))
def stuck(limit: Limit = 100, urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Leased jobs past their deadline. Workers and polls give them back by themselves."""
    answers = ask_stores(urls, config, lambda store: store.leases.stuck(limit))
    found = [(index, job) for index, answer in enumerate(answers) for job in answer]
    found = sorted(found, key=lambda each: str(each[1].lease_until))[:limit]
    if as_json:
        write_json([_plain(*each) for each in found])
        return
    if not found:
        say("no job is stuck")
        return
    write_table(
        ["CHANNEL", "CONSUMER", "ID", "WORKER", "LEASED UNTIL", "ATTEMPTS", "ABANDONED"],
        [
            (j.channel, j.consumer, j.event_id, j.worker, j.lease_until, j.attempts, j.abandonments)
            for _, j in found
        ],
    )


@app.command("show", epilog=examples("holdfast jobs show orders o-1"))
def show_(
    channel: Channel,
    event_id: EventId,
    source: Source = DEFAULT_SOURCE,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """An event's job for every consumer: its state, its budgets and every attempt's error."""
    answers = ask_stores(urls, config, lambda store: store.leases.find_jobs(channel, source, event_id))
    found = [(index, job) for index, answer in enumerate(answers) for job in answer]
    if not found:
        raise _no_job(channel, source, event_id)
    if as_json:
        write_json([_plain(*each) for each in found])
        return
    for place, (_, job) in enumerate(found):
        if place:
            write_line("")
        _describe(job)


@app.command(epilog=examples("holdfast jobs requeue orders billing o-1"))
def requeue(
    channel: Channel,
    consumer: Consumer,
    event_id: EventId,
    source: Source = DEFAULT_SOURCE,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make a dead or live job ready again, with fresh budgets. A lease that runs on it is lost."""

    async def ask(bus: Bus) -> JobRecord:
        index, job = _of_consumer(await _find(bus, channel, source, event_id), consumer)
        if job.state not in LIVE | {State.DEAD} or not await bus.requeue(
            channel, consumer, job.id, partition=index
        ):
            raise NotFound(
                f"{event_id!r} is {job.state} for {consumer!r}; only a live or dead job is requeued"
            )
        return job

    job = with_bus(urls, config, ask)
    lost = job.state is State.LEASED
    if as_json:
        write_json({"job": job.id, "was": job.state, "lease_lost": lost})
        return
    say(f"{event_id} is ready again for {consumer}; it was {job.state}")
    if lost:
        say(
            f"the lease of worker {job.worker} is lost: its answer will be refused, its effects may run twice"
        )


@app.command(
    epilog=examples(
        "holdfast jobs cancel orders o-1",
        "holdfast jobs cancel orders o-1 --consumer audit",
        "holdfast jobs cancel orders o-1 --running --reason 'the customer withdrew'",
    )
)
def cancel(
    channel: Channel,
    event_id: EventId,
    by: By,
    consumer: OfConsumer = None,
    running: Annotated[
        bool, typer.Option("--running", help="Also jobs that a worker has: it is told to stop.")
    ] = False,
    reason: Annotated[str | None, typer.Option(help="Why, for the job's record and the audit.")] = None,
    source: Source = DEFAULT_SOURCE,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Cancel an event's waiting jobs. What is leased or has ended stays as it is.

    With --running leased jobs are cancelled too: their workers lose them at once and are told to stop. What a
    handler has done by then stays done.
    """

    async def ask(bus: Bus) -> int:
        found = await _find(bus, channel, source, event_id)
        if consumer is not None:
            _of_consumer(found, consumer)
        return await bus.cancel(
            channel, event_id, source=source, consumer=consumer, running=running, by=by, reason=reason
        )

    cancelled = with_bus(urls, config, ask)
    if as_json:
        write_json({"cancelled": cancelled})
    else:
        say(f"{cancelled} job{'' if cancelled == 1 else 's'} of {event_id} cancelled")
    if not cancelled:
        raise typer.Exit(1)


async def _find(bus: Bus, channel: str, source: str, event_id: str) -> Found:
    found: Found = []
    for index, store in enumerate(await stores(bus)):
        found += [(index, job) for job in await store.leases.find_jobs(channel, source, event_id)]
    if not found:
        raise _no_job(channel, source, event_id)
    return found


def _no_job(channel: str, source: str, event_id: str) -> NotFound:
    return NotFound(f"channel {channel!r} has no job for the event {event_id!r} of source {source!r}")


def _of_consumer(found: Sequence[tuple[int, JobRecord]], consumer: str) -> tuple[int, JobRecord]:
    for each in found:
        if each[1].consumer == consumer:
            return each
    names = ", ".join(job.consumer for _, job in found)
    raise NotFound(f"consumer {consumer!r} has no job for this event; these have: {names}")


def _plain(partition: int, job: JobRecord) -> dict[str, Any]:
    return {"partition": partition, **plain(job)}


def _describe(job: JobRecord) -> None:
    values = {name: value for name, value in plain(job).items() if value is not None and name != "errors"}
    write_pairs({name.replace("_", " "): value for name, value in values.items()})
    for error in job.errors:
        write_line(f"  attempt {error.get('attempt')} at {show(error.get('at'))}: {error.get('error')}")
