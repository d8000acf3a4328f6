"""Operating: operations that were asked for, cancelled, resumed; and whether the counts are right."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.dlq.following import conclude, follow
from holdfast.cli.dlq.options import By, Limit, OperationId
from holdfast.cli.dlq.session import with_letters
from holdfast.cli.ingest import WalPath
from holdfast.cli.options import ConfigFile, Json, Urls, examples
from holdfast.cli.output import say, write_json, write_pairs, write_table
from holdfast.deadletters import DeadLetters, Operation, Operations, Verified

OneOperation = Annotated[str | None, typer.Argument(metavar="[OPERATION]", help="Everything about this one.")]
Repair = Annotated[bool, typer.Option("--repair", help="Make the counts right.")]


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

    found = with_letters(urls, config, None, (), ask)
    if as_json:
        write_json(found if operation is None else found[0])
    elif operation is not None:
        write_pairs({name.replace("_", " "): value for name, value in found[0].to_json().items()})
    elif not found:
        say("no operation was asked for")
    else:
        _print(found)


def _print(found: list[Operation]) -> None:
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
    done = with_letters(urls, config, None, (), lambda letters: Operations(letters).cancel(operation, by))
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

    conclude(with_letters(urls, config, wal, (), work), as_json)


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

    found = with_letters(urls, config, None, (), work)
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


def register(app: typer.Typer) -> None:
    """Add the commands."""
    shown = examples("holdfast dlq operations", "holdfast dlq operations 01985… --json")
    app.command(epilog=shown)(operations)
    app.command(epilog=examples("holdfast dlq cancel 01985…"))(cancel)
    app.command(epilog=examples("holdfast dlq resume 01985…"))(resume)
    app.command(epilog=examples("holdfast dlq verify", "holdfast dlq verify --repair"))(verify)
