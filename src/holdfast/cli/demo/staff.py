"""The staff: the shop's handlers, which fail as handlers do: a slow bank, a bug, bad data, a dead server."""

from __future__ import annotations

import asyncio
import random

from holdfast.bus.app import App
from holdfast.cli.demo.business import CHANGES, ORDERS, PAYMENTS, USERS
from holdfast.model.errors import Terminal, Transient
from holdfast.model.event import Event
from holdfast.model.job import Job

staff = App()
_chance = random.Random()  # noqa: S311 - no secret


@staff.handler(ORDERS, "billing", max_attempts=5, lease="30s", backoff=["1s", "5s", "20s"])
async def bill(event: Event, job: Job) -> None:
    """The bank is away now and then; who has no credit gets none."""
    await _take_time()
    if event.json()["credit"] == "none":
        raise Terminal(f"the card of {event.json()['customer']} was declined")
    if job.attempt == 1 and _chance.random() < 0.05:
        raise Transient("the bank did not answer within 2 s")


@staff.handler(ORDERS, "shipping", max_attempts=3, lease="30s", backoff=["1s", "3s"])
async def ship(event: Event) -> None:
    """A bug that every shop knows: the field is always there, until it is not."""
    await _take_time()
    event.json()["address"]["postcode"]


@staff.handler(PAYMENTS, "ledger", max_attempts=3, lease="30s", backoff=["1s", "3s"])
async def book(event: Event) -> None:
    """Amounts are numbers, most of the time."""
    await _take_time()
    float(event.json()["amount"])


@staff.handler(USERS, "mailer", max_attempts=4, lease="30s", backoff=["1s", "2s", "4s"])
async def welcome(event: Event) -> None:
    """A provider whose server refuses us."""
    await _take_time()
    if event.json().get("email", "").endswith("@mail.invalid"):
        raise ConnectionRefusedError("mail.invalid:25 refused the connection")


@staff.handler(CHANGES, "compliance", max_attempts=3, lease="30s")
async def note(event: Event) -> None:
    """Nothing ever goes wrong here."""
    await _take_time()


async def _take_time() -> None:
    await asyncio.sleep(_chance.uniform(0.02, 0.2))
