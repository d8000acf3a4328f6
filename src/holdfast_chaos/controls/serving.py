"""Defects of the server: it does not ask what a token is for (I16)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import holdfast
from holdfast_chaos.controls.control import Control
from holdfast_chaos.history import History
from holdfast_chaos.rig import CHANNEL, Rig

OTHER, SERVED = "secrets", 200


async def ask(spec: dict[str, Any]) -> None:
    """Read two channels, with a token for one of them. Specification: url, history, defect (yes or no)."""
    from holdfast.config.config import Config
    from holdfast.model.scopes import scope_of
    from holdfast.server.app import create_app
    from holdfast.server.auth.caller import Caller
    from holdfast.server.supervisor import Supervisor
    from holdfast.server.system import create_system

    if spec["defect"]:
        Caller.may = lambda self, *what: True  # type: ignore[method-assign]  # the defect
    notes = History(Path(spec["history"]))
    async with holdfast.connect(spec["url"]) as bus:
        known = create_system(bus, Supervisor(), Config())
        token = (await known.tokens.create(scope_of("reader", CHANNEL, None))).text
        app = create_app(known)
        for channel in (CHANNEL, OTHER):
            number = notes.invoked("request", [{"channel": channel, "granted": CHANNEL}])
            notes.answered(number, "ok", [await _status(app, f"/api/v1/channels/{channel}/events", token)])


async def _status(app: Any, path: str, token: str) -> int:
    """How the application answers a GET."""
    answers: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET"}
    place = {"scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    ends = {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "headers": headers}
    await app(scope | place | ends, receive, send)
    return int(answers[0]["status"])


async def _two_channels(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("publisher") as bus:
        for channel in (CHANNEL, OTHER):
            await bus.publish(channel, {"n": 1}, id="e")
    code = await rig.start("control", part="serving.ask", defect=not sound).ended()
    [own, _] = [status for call in rig.calls() if call.verb == "request" for status in call.answers]
    if code or own != SERVED:
        raise RuntimeError(f"a reader was not served its own channel, but with {own}, and ended with {code}")
    return await rig.broken()


CONTROLS = [
    Control(
        "any-token",
        "The server lets every valid token do everything.",
        "I16",
        _two_channels,
        missing=lambda: None if find_spec("fastapi") else "the server is not installed",
    )
]
