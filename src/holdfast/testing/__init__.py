"""The test kit: a real bus for each test, a clock to move, and assertions about what was published.

pytest_plugins = ["holdfast.testing.fixtures"]              # in conftest.py

async def test_an_order_is_billed(bus, clock):
    await bus.publish("orders", {"n": 1})
    await drain(app, bus)                                   # runs the handlers until nothing is left
    assert_published(await events(bus, "invoices"), count=1, data={"order": 1})
"""

from holdfast.testing.assertions import assert_published, events
from holdfast.testing.drain import Clock, Drained, drain

__all__ = ["Clock", "Drained", "assert_published", "drain", "events"]
