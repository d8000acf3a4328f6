"""Browsers: pages of other sites can do nothing here, and find nothing out."""

from __future__ import annotations

import httpx
import pytest
from application import application, problem
from world import CHANNEL, World, asked, content, picture, settle

import holdfast
from holdfast.server.routes import routes_of

OTHER_PORT = {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}
FOREIGN: list[dict[str, str]] = [
    OTHER_PORT,
    {"Origin": "http://localhost:3000"},
    {"Origin": "null"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    {"Sec-Fetch-Site": "something-new"},
]
FOLLOWED = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}
"""A link of another site, or a form that it sends to us in a whole tab."""
OWN: list[dict[str, str]] = [
    {},
    {"Origin": "http://localhost"},
    {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
    {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    FOLLOWED,
]


def plain(answer: httpx.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    """All that a page could see of an answer."""
    return answer.status_code, answer.content, sorted(answer.headers.items())


async def test_another_site_changes_nothing_by_any_route(bus: holdfast.Bus) -> None:
    """Also not with a token that it should not have."""
    world = await settle(bus)
    async with application(bus) as found:
        bearer = await found.bearer("admin")
        before = await picture(bus)
        for route in routes_of(found.app):
            for method in sorted(route.methods or ()):
                path = str(route.path_format).format_map(_Names(world.names))
                body = world.body(str(route.name))
                for headers in FOREIGN if method == "GET" else [*FOREIGN, FOLLOWED]:
                    answer = await found.client.request(method, path, **content(body, {**bearer, **headers}))
                    problem(answer, 403)
        assert await picture(bus) == before


class _Names(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "anything"


@pytest.mark.parametrize("headers", FOREIGN)
async def test_another_site_cannot_tell_which_channels_there_are(
    bus: holdfast.Bus, headers: dict[str, str]
) -> None:
    await settle(bus)
    async with application(bus) as found:
        for path in (
            "/channels/{}",
            "/live/channels/{}",
            "/api/v1/channels/{}",
            "/api/v1/channels/{}/events",
        ):
            known, unknown = [
                await found.client.get(path.format(name), headers=headers) for name in (CHANNEL, "nonesuch")
            ]
            assert plain(known) == plain(unknown)
            assert known.status_code == 403


@pytest.mark.parametrize("headers", OWN)
async def test_our_own_pages_and_programs_are_served(bus: holdfast.Bus, headers: dict[str, str]) -> None:
    await settle(bus)
    async with application(bus) as found:
        bearer = await found.bearer("admin")
        for path in ("/", f"/channels/{CHANNEL}", "/static/mark.svg", "/healthz"):
            answer = await found.client.get(path, headers={**headers, **bearer})
            assert answer.status_code in (200, 303), path
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://a]b"])
async def test_an_origin_that_is_none_is_a_400(bus: holdfast.Bus, origin: str) -> None:
    async with application(bus) as found:
        for method, path in (
            ("GET", "/api/v1/channels"),
            ("POST", "/login"),
            ("POST", "/api/v1/channels/a/events"),
        ):
            problem(await found.client.request(method, path, headers={"Origin": origin}), 400)


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "", "x/y", "a"],
)
async def test_what_is_not_called_json_is_not_taken_for_it(bus: holdfast.Bus, kind: str) -> None:
    """A page of another site can send only these without being asked about it first."""
    world: World = await settle(bus)
    async with application(bus) as found:
        before = await picture(bus)
        for each in asked(found):
            for body in world.bodies.get(each.operation, []):
                if body is None:
                    continue
                request = found.client.build_request(each.method, world.path(each.template), **content(body))
                request.headers.pop("Content-Type", None)
                if kind:
                    request.headers["Content-Type"] = kind
                problem(await found.client.send(request), 415)
        assert await picture(bus) == before
