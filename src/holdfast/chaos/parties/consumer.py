"""A process that works: an app whose handlers do what the event says, or the app of a user.

Specification: url, history, channel, policy; or app (`module:name`) instead of channel and policy, or
policies (by consumer) instead of policy; and optionally idle and grace. Of the two consumers of the rig one
takes events in the order of their keys.
"""

from __future__ import annotations

import asyncio
import random
import sys
from importlib import import_module
from typing import Any

import holdfast
from holdfast.bus.app import App
from holdfast.bus.client import Bus
from holdfast.chaos.history import History
from holdfast.chaos.parties.heartbeat import beating
from holdfast.chaos.parties.opening import opened
from holdfast.chaos.roles import TERMS
from holdfast.model.errors import InvalidInput

PLAIN, ORDERED = "billing", "shipping"
CONSUMERS = ((PLAIN, False), (ORDERED, True))
"""Each with whether it takes events in order."""


def own_app(spec: dict[str, Any], notes: History) -> App:
    """The consumers of the rig."""
    app, chance = holdfast.App(), random.Random()
    policies = spec.get("policies") or {
        name: spec["policy"] | {"ordered": ordered} for name, ordered in CONSUMERS
    }
    for name, policy in policies.items():

        def work_for(consumer: str) -> Any:
            async def work(event: holdfast.Event) -> None:
                about = {"id": event.id, "consumer": consumer}
                notes.happened("seen", about)
                match event.json()["do"]:
                    case "slow":
                        await asyncio.sleep(chance.uniform(0, 0.3))
                    case "flaky" if chance.random() < 0.5:
                        raise RuntimeError("not this time")
                    case "fail":
                        raise RuntimeError("never")
                    case "terminal":
                        raise holdfast.Terminal("no use")
                notes.happened("effect", about)

            return work

        app.handler(spec["channel"], name, start="earliest", **policy)(work_for(name))
    return app


def users_app(name: str) -> App:
    """The app that a user names as `module:name`, on terms under which a kill is soon over."""
    sys.path.insert(0, "")
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute or "app", None)
    except ModuleNotFoundError as error:
        raise InvalidInput(f"app {name!r}: {error}; name one that can be imported as MODULE:APP") from None
    if not isinstance(found, App):
        raise InvalidInput(f"app {name!r} is no holdfast.App; name one as MODULE:APP")
    for handler in found.handlers:
        handler.policy.update(TERMS)
    return found


async def main(spec: dict[str, Any]) -> None:
    store, notes = opened(spec)
    app = users_app(spec["app"]) if "app" in spec else own_app(spec, notes)
    async with Bus([store]) as bus, beating(notes):
        await app.serve(bus, idle=spec.get("idle", "200ms"), grace=spec.get("grace", "3s"))
