"""`holdfast failed`: events that the ingest gave up on, and what can be done about them."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from holdfast.cli.options import ConfigFile, Json, examples
from holdfast.cli.output import plain, say, write_json, write_pairs, write_table
from holdfast.cli.pipeline import WalPath, WarehouseUrl, failed_events
from holdfast.model.errors import Transient

if TYPE_CHECKING:  # Arrow takes longer to import than most commands to run
    from holdfast.pipeline.failed.service import FailedEvents
    from holdfast.pipeline.warehouse import FailedEvent

app = typer.Typer(help="Events that the ingest gave up on: look, retry, resolve.", no_args_is_help=True)

FailedId = Annotated[
    str, typer.Argument(metavar="FAILED_ID", help="The id of the failed event, from the list.")
]
Status = Annotated[
    Literal["pending", "retrying", "resolved", "abandoned"] | None,
    typer.Option(help="Only those in this status."),
]
OfChannel = Annotated[str | None, typer.Option("--channel", help="Only of this channel.")]
Limit = Annotated[int, typer.Option(min=1, help="Show at most so many.")]
By = Annotated[
    str, typer.Option("--by", help="Who does it.", default_factory=getpass.getuser, show_default="you")
]
Notes = Annotated[str, typer.Option("--notes", help="Why, for whoever looks at it later.")]


@app.command(
    "list",
    epilog=examples(
        "holdfast failed list --config holdfast.yaml", "holdfast failed list --status pending --json"
    ),
)
def list_(
    status: Status = None,
    channel: OfChannel = None,
    limit: Limit = 100,
    wal: WalPath = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Failed events, as the WAL knows them: those that are pending first."""
    with failed_events(config, wal, None, existing=True) as failed:
        found = failed.find(status=status, channel=channel, limit=limit, pending_first=True)
    if as_json:
        write_json(found)
    elif not found:
        say("no event has failed")
    else:
        write_table(
            ["FAILED ID", "CHANNEL", "EVENT", "REASON", "STATUS", "RETRIES", "FAILED AT", "ERROR"],
            [
                (
                    e.id,
                    e.channel,
                    e.event_id,
                    e.failure_reason,
                    e.status,
                    e.retry_count,
                    e.failed_at,
                    e.last_error,
                )
                for e in found
            ],
        )


@app.command(epilog=examples("holdfast failed show 4f0c… --config holdfast.yaml"))
def show(failed_id: FailedId, wal: WalPath = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Everything about one of them, its payload included."""
    with failed_events(config, wal, None, existing=True) as failed:
        _print(failed.show(failed_id), as_json)


@app.command(epilog=examples("holdfast failed retry 4f0c… --config holdfast.yaml"))
def retry(
    failed_id: FailedId,
    by: By,
    wal: WalPath = None,
    warehouse: WarehouseUrl = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Validate it again and put it into the warehouse now. Ends with 1 where it fails again."""
    event = _change(config, wal, warehouse, lambda failed: failed.retry(failed_id, by))
    _print(event, as_json)
    if event.status != "resolved":
        raise typer.Exit(1)


@app.command(
    epilog=examples("holdfast failed resolve 4f0c… --notes 'entered by hand' --config holdfast.yaml")
)
def resolve(
    failed_id: FailedId,
    notes: Notes,
    by: By,
    wal: WalPath = None,
    warehouse: WarehouseUrl = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Write down that it was dealt with in another way."""
    _print(_change(config, wal, warehouse, lambda failed: failed.resolve(failed_id, by, notes)), as_json)


@app.command(epilog=examples("holdfast failed abandon 4f0c… --notes 'a test event' --config holdfast.yaml"))
def abandon(
    failed_id: FailedId,
    notes: Notes,
    by: By,
    wal: WalPath = None,
    warehouse: WarehouseUrl = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Write down that nothing will be done about it."""
    _print(_change(config, wal, warehouse, lambda failed: failed.abandon(failed_id, by, notes)), as_json)


def _change(
    config: ConfigFile,
    wal: str | None,
    warehouse: str | None,
    act: Callable[[FailedEvents], FailedEvent],
) -> FailedEvent:
    """In the WAL at once; in the warehouse's `failed_events` too, if it can be reached."""
    with failed_events(config, wal, warehouse, existing=True) as failed:
        event = act(failed)
        try:
            failed.mirror()
        except Transient as error:
            say(f"failed_events in the warehouse will follow: {error}")
    return event


def _print(event: FailedEvent, as_json: bool) -> None:
    if as_json:
        write_json(event)
        return
    values = {name: value for name, value in plain(event).items() if value is not None}
    write_pairs({name.replace("_", " "): value for name, value in values.items()})
