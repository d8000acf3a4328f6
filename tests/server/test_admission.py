"""Admission: nobody who may not ask makes the server read what he sends; and what is read is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from application import Application, application, problem
from world import CHANNEL, CONSUMER, asked, settle

import holdfast
from holdfast.server import pages
from holdfast.server.auth.guard import GuardedRoute
from holdfast.server.routes import routes_of

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://localhost"}


class Unread:
    """A body that must not be read."""

    def __init__(self) -> None:
        self.read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.read = True
        yield b"{}"


async def ask(
    found: Application, method: str, path: str, headers: dict[str, str]
) -> tuple[httpx.Response, bool]:
    """The answer, and whether the body was read."""
    body = Unread()
    answer = await found.client.request(method, path, content=body, headers=headers)
    return answer, body.read


async def test_every_route_lets_its_callers_in_before_it_reads_what_they_send(bus: holdfast.Bus) -> None:
    world = await settle(bus)
    async with application(bus, open=False) as found:
        for route in routes_of(found.app):
            assert isinstance(route.original_route, GuardedRoute), route.path
        other = await found.bearer("channel", "other")
        for each in asked(found):
            if each.need.verb == "read" or each.need.filtered:
                continue
            path = world.path(each.template)
            for shown, status in ({}, 401), ({"Authorization": "Bearer hf_x"}, 401), (other, 403):
                answer, was_read = await ask(found, each.method, path, {**JSON, **shown})
                assert (answer.status_code, was_read) == (status, False), (each, shown)


@pytest.mark.parametrize(("token", "age"), [("0" * 16, 0), (None, 600)], ids=["unknown", "late"])
async def test_what_is_signed_by_a_stranger_or_too_late_is_not_read(
    bus: holdfast.Bus, token: str | None, age: int
) -> None:
    await settle(bus)
    async with application(bus, open=False) as found:
        signer = token or (await found.token("admin")).split("_")[1]
        at = (await found.tokens.now()).timestamp() - age
        header = f"HF1 id={signer},time={at:.3f},signature={'0' * 64}"
        path = f"/api/v1/channels/{CHANNEL}/events"
        answer, was_read = await ask(found, "POST", path, {**JSON, "Authorization": header})
        assert (answer.status_code, was_read) == (401, False)


async def test_a_form_is_not_read_for_somebody_without_a_session(bus: holdfast.Bus) -> None:
    await settle(bus)
    async with application(bus, open=False) as found:
        await found.token("admin")
        posts = [
            route
            for route in routes_of(found.app)
            if not route.include_in_schema and "POST" in (route.methods or ())
        ]
        protected = [route for route in posts if not str(route.path).startswith(("/login", "/logout"))]
        assert protected
        for route in protected:
            path = str(route.path_format).format(
                **dict.fromkeys(("item", "operation", "failed", "schedule"), "x"),
                channel=CHANNEL,
                consumer=CONSUMER,
                act="retry",
            )
            answer, was_read = await ask(found, "POST", path, FORM)
            assert not was_read, path
            assert answer.status_code in (303, 401, 403), path


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"a=" + b"b" * (pages.layout.FORM + 1), FORM["Content-Type"], 413),
        (b"a&" * (pages.layout.FIELDS + 1), FORM["Content-Type"], 413),
        (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x", 415),
    ],
)
async def test_a_form_is_bounded(bus: holdfast.Bus, body: bytes, kind: str, status: int) -> None:
    async with application(bus) as found:
        answer = await found.client.post("/login", content=body, headers={**FORM, "Content-Type": kind})
        assert answer.status_code == status


async def test_a_problem_names_ten_errors_at_most(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        body = b'{"events":[' + b",".join([b"1"] * 1000) + b"]}"
        answer = await found.client.post("/api/v1/channels/c/events/batch", content=body, headers=JSON)
        told = problem(answer, 422)
        assert len(told["errors"]) == 10  # type: ignore[arg-type]
        assert len(answer.content) < 3_000


async def test_a_batch_over_its_limit_is_refused_whole(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        for count, status in ((1001, 413), (1000, 201)):
            body = b'{"events":[' + b",".join([b"{}"] * count) + b"]}"
            answer = await found.client.post("/api/v1/channels/c/events/batch", content=body, headers=JSON)
            assert answer.status_code == status, answer.text
        assert (await found.client.get("/api/v1/channels/c")).json()["events"] == 1000


async def test_a_caller_who_leaves_in_the_middle_is_no_error_of_ours(
    bus: holdfast.Bus, caplog: pytest.LogCaptureFixture
) -> None:
    """As a server sees it whose client has closed the connection."""
    async with application(bus) as found:
        for path, kind in (("", "application/json"), ("/stream", "application/x-ndjson")):
            messages = [
                {"type": "http.request", "body": b'{"data":', "more_body": True},
                {"type": "http.disconnect"},
            ]
            sent: list[dict[str, object]] = []

            async def receive(messages: list[dict[str, object]] = messages) -> dict[str, object]:
                return messages.pop(0)

            async def send(message: dict[str, object], sent: list[dict[str, object]] = sent) -> None:
                sent.append(message)

            scope = {
                "type": "http",
                "http_version": "1.1",
                "method": "POST",
                "scheme": "http",
                "path": f"/api/v1/channels/c/events{path}",
                "query_string": b"",
                "headers": [(b"host", b"localhost"), (b"content-type", kind.encode())],
            }
            await found.app(scope, receive, send)  # type: ignore[arg-type]
            assert not sent  # there is nobody to be answered
    assert "Traceback" not in caplog.text
