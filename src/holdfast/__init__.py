"""Holdfast: durable event delivery.

async with holdfast.connect() as hf:
    await hf.subscribe("orders", "billing")
    await hf.publish("orders", {"n": 1}, id="o-1")
    for job in await hf.poll("orders", "billing", limit=10):
        await hf.finalize(job, success=True)
"""

from holdfast.bus.app import App
from holdfast.bus.client import Bus
from holdfast.model.backoff import Exponential
from holdfast.model.errors import (
    HoldfastError,
    IdConflict,
    InvalidInput,
    LeaseLost,
    NotFound,
    Overloaded,
    Snooze,
    Terminal,
    Transient,
    Unavailable,
)
from holdfast.model.event import Event, Receipt
from holdfast.model.job import Job
from holdfast.wiring import connect, connect_sync

__all__ = [
    "App",
    "Bus",
    "Event",
    "Exponential",
    "HoldfastError",
    "IdConflict",
    "InvalidInput",
    "Job",
    "LeaseLost",
    "NotFound",
    "Overloaded",
    "Receipt",
    "Snooze",
    "Terminal",
    "Transient",
    "Unavailable",
    "connect",
    "connect_sync",
]
