"""Alerts: raised at once, then once an hour while they last, whoever raises them."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.contracts import Backend
from holdfast.model.errors import IdConflict
from holdfast.model.log import Lag
from holdfast.upkeep.announcements import Alert, announce


async def raise_alert(backend: Backend, namespace: str, alert: Alert) -> None:
    """Publish an alert. What it is about and the hour are its id: the store refuses a second one.

    So the sweeper and the archiver, which both see an archive that is behind, tell of it once, and a restart
    does not tell of it again.
    """
    hour = f"{await backend.now():%Y-%m-%dT%H}"
    name = ":".join([alert.kind, alert.channel or "", alert.consumer or "", alert.event_id or "", hour])
    try:
        await announce(backend, namespace, alert, name)
    except IdConflict:
        return  # told before in this hour, with other figures


def lag_alert(
    channel: str, consumer: str, lag: Lag, now: datetime, most_events: int, most_age: timedelta
) -> Alert | None:
    """What to say of a stream consumer's lag, if it is over a threshold."""
    age = 0.0 if lag.oldest is None else (now - lag.oldest).total_seconds()
    if lag.events <= most_events and age <= most_age.total_seconds():
        return None
    return Alert(
        kind="lag",
        message=f"{consumer} is {lag.events} events and {age:.0f} s behind on {channel}; "
        "look at its log, and give it more cores if it only lacks time",
        channel=channel,
        consumer=consumer,
        count=lag.events,
        age_seconds=age,
    )
