"""A worker with two consumers of one channel. In this folder:

holdfast worker shop:app
holdfast publish orders '{"total": 12}' --id o-1 --key customer-7       # in another terminal
holdfast jobs show orders o-1
"""

import asyncio
import logging

import holdfast

log = logging.getLogger(__name__)
app = holdfast.App()


@app.handler("orders", "billing", max_attempts=5, lease="30s", backoff=["1s", "10s", "1m"])
async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
    """An async handler. It may run again for the same event, so the bank gets the event's id as its key."""
    order = event.json()
    if order["total"] < 0:
        raise holdfast.Terminal("a negative total")  # dead at once
    await asyncio.sleep(0.1)
    log.info("order %s billed at attempt %d", event.id, job.attempt)


@app.handler("orders", "audit", ordered=True, start="earliest", concurrency=4)
def audit(event: holdfast.Event) -> None:
    """A plain function runs in a thread and may block. Orders of one customer come in order."""
    log.info("order %s of %s written down", event.id, event.key)
