"""Operations that were asked for, cancelled, resumed; whether the counts are right; a check for monitors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from holdfast.cli.dlq.options import Limit, OfChannel, OfConsumer, OperationId, filter_of
from holdfast.cli.dlq.progress import conclude, follow
from holdfast.cli.options import By, ConfigFile, Json, Urls, examples
from holdfast.cli.output import say, write_json, write_line, write_pairs, write_table
from holdfast.cli.pipeline import WalPath
from holdfast.cli.session import with_deadletters
from holdfast.deadletters import ConsumerDead, DeadLetters, Operation, Operations, Verified
from holdfast.embedded import MissingWheelError, ServerError
from holdfast.model.errors import HoldfastError, NotFound

OneOperation = Annotated[str | None, typer.Argument(metavar="[OPERATION]", help="Everything about this one.")]
Repair = Annotated[bool, typer.Option("--repair", help="Make the counts right.")]
Warn = Annotated[int, typer.Option("--warn", min=0, help="Warn where a consumer has more dead letters.")]
Crit = Annotated[int, typer.Option("--crit", min=0, help="Critical where a consumer has more dead letters.")]
OK, WARNING, CRITICAL, UNKNOWN = range(4)
_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def operations(
    operation: OneOperation = None,
    limit: Limit = 20,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """What was asked for, by whom, how far it is and how it ended; the latest first."""

    async def ask(letters: DeadLetters) -> list[Operation]:
        known = Operations(letters)
        return [await known.show(operation)] if operation is not None else await known.latest(limit)

    found = with_deadletters(urls, config, None, (), ask)
    if as_json:
        write_json(found if operation is None else found[0])
    elif operation is not None:
        write_pairs({name.replace("_", " "): value for name, value in found[0].to_json().items()})
    elif not found:
        say("no operation was asked for")
    else:
        _print_operations(found)


def _print_operations(found: list[Operation]) -> None:
    write_table(
        ["OPERATION", "KIND", "TARGET", "BY", "STATE", "DONE", "SKIPPED", "EXPECTED", "ASKED AT", "OUTCOME"],
        [
            (
                each.id,
                each.kind,
                each.request.target,
                each.actor,
                each.state,
                each.progress.done,
                each.progress.skipped,
                each.progress.expected,
                each.created_at,
                each.outcome,
            )
            for each in found
        ],
    )


def cancel(
    operation: OperationId, by: By, urls: Urls = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Begin nothing more of it. What is under way is finished; `dlq resume` goes on from there."""
    done = with_deadletters(urls, config, None, (), lambda letters: Operations(letters).cancel(operation, by))
    if as_json:
        write_json(done)
    else:
        say(f"{done.kind} {done.id} is cancelled: {done.outcome}")


def resume(
    operation: OperationId,
    by: By,
    wal: WalPath = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Go on with an operation that was cancelled, stopped, failed, or left by a process that died.

    One that its canary stopped goes on without a canary.
    """

    async def work(letters: DeadLetters) -> Operation:
        await Operations(letters).resume(operation, by)
        return await follow(letters, operation, as_json)

    conclude(with_deadletters(urls, config, wal, (), work), as_json)


def verify(
    by: By, repair: Repair = False, urls: Urls = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Count the dead letters one by one and compare with the counts. Ends with 1 where some were wrong."""

    async def work(letters: DeadLetters) -> list[Verified]:
        found = await letters.verify(repair)
        if repair and found:
            audit = await Operations(letters).audit()
            await audit.did(by, "verify", "counts", f"{len(found)} made right")
        return found

    found = with_deadletters(urls, config, None, (), work)
    if as_json:
        write_json({"drift": found, "repaired": repair and bool(found)})
    elif not found:
        say("every count is right")
    else:
        _print_drift(found)
        say("the counts were made right" if repair else "make them right with: holdfast dlq verify --repair")
    if found and not repair:
        raise typer.Exit(1)


def _print_drift(found: list[Verified]) -> None:
    rows = [(d.partition, d.channel, d.consumer, d.reason, d.counted, d.found) for d in found]
    write_table(["PARTITION", "CHANNEL", "CONSUMER", "REASON", "COUNTED", "FOUND"], rows)


class MonitorStatus(NamedTuple):
    """What a monitor is told."""

    code: int
    message: str
    figures: dict[str, int]


def _status_of(found: Sequence[ConsumerDead], warn: int, crit: int) -> MonitorStatus:
    """The status of these consumers: the worst one decides."""
    worst = max((each.dead for each in found), default=0)
    code = CRITICAL if worst > crit else WARNING if worst > warn else OK
    limit = {CRITICAL: crit, WARNING: warn}.get(code, 0)
    named = [f"{c.consumer} of {c.channel} has {c.dead}" for c in found if c.dead > limit and code]
    total = sum(each.dead for each in found)
    said = f"{_amount(total, 'dead letter')}, {_amount(len(found), 'consumer')}"
    return MonitorStatus(
        code, "; ".join([said, *named]), {f"{c.channel}/{c.consumer}": c.dead for c in found}
    )


def _amount(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _line(status: MonitorStatus, warn: int, crit: int) -> str:
    """The line, with performance data after the bar."""
    data = " ".join(f"'{name}'={count};{warn};{crit};0" for name, count in status.figures.items())
    # What stands after the first bar is data.
    said = f"DEAD LETTERS {_NAMES[status.code]} - {status.message.replace('|', '/')}"
    return f"{said} | {data}" if data else said


def check(
    warn: Warn,
    crit: Crit,
    channel: OfChannel = None,
    consumer: OfConsumer = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """For monitoring: one line with performance data; ends with 0 ok, 1 warning, 2 critical, 3 unknown."""
    try:
        chosen = filter_of(channel=channel, consumer=consumer)
        found = with_deadletters(urls, config, None, (), lambda letters: letters.status())
        mine = [c for c in found if channel in (None, c.channel) and consumer in (None, c.consumer)]
        if not mine and not chosen.empty:  # a name that is misspelt must not look well
            raise NotFound(f"no consumer fits: channel {channel or 'any'}, consumer {consumer or 'any'}")
        status = _status_of(mine, warn, crit)
    except (HoldfastError, ServerError, MissingWheelError, ModuleNotFoundError) as error:
        status = MonitorStatus(UNKNOWN, " ".join(str(error).split()), {})
    if as_json:
        write_json({"status": _NAMES[status.code], "message": status.message, "dead": status.figures})
    else:
        write_line(_line(status, warn, crit))
    raise typer.Exit(status.code)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    shown = examples("holdfast dlq operations", "holdfast dlq operations 01985… --json")
    app.command(epilog=shown)(operations)
    app.command(epilog=examples("holdfast dlq cancel 01985…"))(cancel)
    app.command(epilog=examples("holdfast dlq resume 01985…"))(resume)
    app.command(epilog=examples("holdfast dlq verify", "holdfast dlq verify --repair"))(verify)
    app.command(
        epilog=examples(
            "holdfast dlq check --warn 10 --crit 100",
            "holdfast dlq check --warn 0 --crit 50 --channel orders --consumer billing",
        )
    )(check)
