"""Problems: every error is one, in the form of RFC 9457, without a traceback and without a secret."""

from __future__ import annotations

import asyncio
import inspect
import logging

import httpx
import pytest
from application import Application, application, problem
from fastapi import Depends
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import holdfast
from holdfast.model import errors
from holdfast.server import errors as server_errors
from holdfast.server.auth.guard import Router, anybody, needs
from holdfast.server.problems import STATUSES

SECRET = "hunter2"
MADE: dict[type[Exception], Exception] = {
    errors.IdConflict: errors.IdConflict("orders", ["a", "b"]),
    errors.LeaseLost: errors.LeaseLost(["7"]),
    errors.LockLost: errors.LockLost("sweeper", 3),
    errors.Snooze: errors.Snooze("1s"),
    errors.Incompatible: errors.Incompatible("orders", ["/total: it is required now"]),
}
EXPECTED = {
    errors.HoldfastError: 500,
    errors.InvalidInput: 400,
    errors.InvalidName: 400,
    errors.InvalidPolicy: 400,
    errors.TooLarge: 413,
    errors.NotFound: 404,
    errors.IdConflict: 409,
    errors.Incompatible: 409,
    errors.Outdated: 412,
    errors.LeaseLost: 409,
    errors.LockLost: 409,
    errors.DataLost: 410,
    errors.ObjectConflict: 409,
    errors.Damaged: 500,
    errors.Terminal: 500,
    errors.InvalidData: 500,
    errors.Snooze: 500,
    errors.Transient: 503,
    errors.Overloaded: 429,
    errors.Unavailable: 503,
    errors.TooManyConnections: 503,
}


class Thing(BaseModel):
    number: int


def add_routes(found: Application, error: BaseException | None = None) -> None:
    """A route that fails, one that takes a number, and one that fails in the middle of its answer."""
    router, known = Router(dependencies=[Depends(anybody)]), Router(dependencies=[Depends(needs("read"))])

    @known.get("/fail")
    async def fail() -> None:
        assert error is not None
        raise error

    @router.post("/thing/{number}")
    async def thing(number: int, body: Thing) -> None:
        return None

    @router.get("/twice/{number}")
    @router.put("/twice/{number}")
    async def twice(number: int) -> None:
        return None

    @router.get("/half")
    async def half() -> StreamingResponse:
        async def parts():  # type: ignore[no-untyped-def]
            yield b"half"
            raise RuntimeError(SECRET)

        return StreamingResponse(parts())

    found.app.include_router(router)
    found.app.include_router(known)


def test_every_error_of_the_tree_has_a_status() -> None:
    tree = {each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)}
    assert tree == set(EXPECTED)
    assert set(STATUSES) <= tree


@pytest.mark.parametrize(("kind", "status"), EXPECTED.items())
async def test_an_error_of_ours_is_a_problem(bus: holdfast.Bus, kind: type[Exception], status: int) -> None:
    error = MADE.get(kind) or kind("the value 'x' is wrong; use another one")
    async with application(bus) as found:
        add_routes(found, error)
        answer = await found.client.get("/fail")
        body = problem(answer, status)
        assert body["detail"] == str(error)
        assert str(body["type"]).startswith("urn:holdfast:problem:")
        assert ("Retry-After" in answer.headers) == (status in (429, 503))


async def test_a_problem_names_what_it_is_about(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        add_routes(found, MADE[errors.IdConflict])
        body = problem(await found.client.get("/fail"), 409)
        assert (body["type"], body["title"], body["ids"]) == (
            "urn:holdfast:problem:id-conflict",
            "Id conflict",
            ["a", "b"],
        )
    async with application(bus) as found:
        add_routes(found, MADE[errors.LeaseLost])
        assert problem(await found.client.get("/fail"), 409)["jobs"] == ["7"]


def _refusals() -> list[server_errors.Refusal]:
    kinds = [each for _, each in inspect.getmembers(server_errors, inspect.isclass)]
    kinds = [each for each in kinds if issubclass(each, server_errors.Refusal)]
    special = {
        server_errors.Forbidden: ("read", "orders"),
        server_errors.TooManyRequests: (3,),
        server_errors.Full: (503, "no room"),
    }
    return [kind(*special.get(kind, ("no",))) for kind in kinds]


@pytest.mark.parametrize("refusal", _refusals(), ids=lambda each: type(each).__name__)
async def test_a_refusal_is_a_problem_with_its_headers(
    bus: holdfast.Bus, refusal: server_errors.Refusal
) -> None:
    async with application(bus) as found:
        add_routes(found, refusal)
        answer = await found.client.get("/fail")
        assert problem(answer, refusal.status)["detail"] == str(refusal)
        assert {name: answer.headers[name] for name in refusal.headers} == refusal.headers


async def test_an_error_that_nobody_expected_tells_nothing_but_is_logged(
    bus: holdfast.Bus, caplog: pytest.LogCaptureFixture
) -> None:
    async with application(bus) as found:
        add_routes(found, RuntimeError(SECRET))
        answer = await found.client.get("/fail")
    assert problem(answer, 500)["title"] == "Internal Server Error"
    assert SECRET not in answer.text
    assert "GET /fail failed" in caplog.text
    assert any(record.exc_info for record in caplog.records if record.levelno == logging.ERROR)


async def test_a_password_in_an_error_is_masked(bus: holdfast.Bus) -> None:
    url = f"postgresql://user:{SECRET}@host/db"
    async with application(bus) as found:
        add_routes(found, errors.Unavailable(f"{url} does not answer"))
        answer = await found.client.get("/fail")
    assert SECRET not in answer.text
    assert "postgresql://user:***@host/db" in str(problem(answer, 503)["detail"])


async def test_what_does_not_fit_is_said_without_its_value(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        add_routes(found)
        answer = await found.client.post(f"/thing/{SECRET}", json={"number": SECRET})
        body = problem(answer, 422)
        assert body["type"] == "urn:holdfast:problem:invalid-request"
        assert isinstance(body["errors"], list)
        assert [each["where"] for each in body["errors"]] == ["path.number", "body.number"]
        assert SECRET not in answer.text


async def test_a_wrong_value_in_a_query_is_named_and_cut(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        for value in ("abc", f"postgresql://user:{SECRET}@host/db", "x" * 5000):
            answer = await found.client.get("/api/v1/channels", params={"limit": value})
            assert str(problem(answer, 422)["detail"]).startswith("query.limit: Input should be")
            assert SECRET not in answer.text
            assert len(answer.text) < 1000
        assert "not 'abc'" in (await found.client.get("/api/v1/channels", params={"limit": "abc"})).text


async def test_a_parameter_that_is_given_twice_is_refused_unless_it_is_a_list(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        twice = await found.client.get("/api/v1/channels?limit=1&limit=1000")
        assert "'limit' is given 2 times" in str(problem(twice, 400)["detail"])
        listed = await found.client.get("/api/v1/deadletters?kinds=job&kinds=stream")
        assert listed.status_code == 200
        problem(await found.client.get("/api/v1/deadletters?channel=a&channel=b"), 400)


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b'{"number": NaN', b"", b'"\\ud800"'])
async def test_a_body_that_is_no_json_is_a_problem(bus: holdfast.Bus, body: bytes) -> None:
    async with application(bus) as found:
        add_routes(found)
        answer = await found.client.post(
            "/thing/1", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (400, 422)
        problem(answer, answer.status_code)


@pytest.mark.parametrize("path", ["/nothing", "/api/v1/nothing", "/healthz/", "/%00", "/..%2f"])
async def test_an_unknown_path_is_a_problem(bus: holdfast.Bus, path: str) -> None:
    async with application(bus) as found:
        assert problem(await found.client.get(path), 404)["type"] == "about:blank"


async def test_a_method_that_is_not_there_is_a_problem_that_names_those_that_are(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        add_routes(found)
        for path, allowed in (("/healthz", "GET"), ("/twice/1", "GET, PUT")):
            answer = await found.client.delete(path)
            problem(answer, 405)
            assert answer.headers["Allow"] == allowed


async def test_half_an_answer_does_not_look_whole(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        add_routes(found)
        with pytest.raises(RuntimeError):
            await found.client.get("/half")


async def test_a_call_that_is_cut_off_is_not_answered(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        add_routes(found, asyncio.CancelledError())
        with pytest.raises(asyncio.CancelledError):
            await found.client.get("/fail")


async def test_every_answer_has_the_headers_that_keep_it_what_it_is(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        answers: list[httpx.Response] = [await found.client.get(path) for path in ("/healthz", "/nothing")]
    for answer in answers:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
