"""The server: whatever bytes come over the wire, it answers below 500 or hangs up, and it goes on serving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest
from hostile import BYTES, JSON, TEXTS, fuzzed
from hypothesis import event, example, given
from hypothesis import strategies as st

import holdfast
from holdfast.config.config import Config
from holdfast.model.scopes import ADMIN
from holdfast.server.app import bare_app, create_app
from holdfast.server.http import HttpService, listen
from holdfast.server.routes import routes_of
from holdfast.server.supervisor import Supervisor
from holdfast.server.system import create_system
from kit import bury, claim_one, publish, subscribe

ROUTES = sorted({(method, route.path) for route in routes_of(bare_app()) for method in route.methods or ()})
LIMITS = {"body": 20_000, "headers": 8_000, "rate": 0, "timeout": "20s"}
TYPES = [
    "application/json",
    "application/x-ndjson",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/plain",
    "",
    "\xff",
]


@dataclass
class Live:
    """A server of this process on a real socket."""

    port: int
    token: str

    async def ask(self, request: bytes, *, whole: bool = True) -> tuple[int | None, bytes]:
        """The status and what followed; None where it hung up without a word. A request that is not whole
        ends with the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            await writer.drain()
            if not whole:
                writer.write_eof()
            async with asyncio.timeout(60):
                head = await reader.readline()
                rest = await reader.readuntil(b"\r\n\r\n") if head else b""
                rest += b"" if b"event-stream" in rest else await reader.read(200_000)
        except (ConnectionError, asyncio.IncompleteReadError):
            return None, b""
        finally:
            writer.close()
        return (int(head.split(b" ")[1]), rest) if head else (None, b"")


@pytest.fixture
async def live(database: str) -> AsyncIterator[Live]:
    """With a dead letter in its store, and a token for everything."""
    async with holdfast.connect(database) as bus:
        store = bus.partitions.all[0].backend
        await subscribe(store)
        await publish(store, "1", "2")
        await bury(store, await claim_one(store))
        known = create_system(
            bus, Supervisor(), Config.model_validate({"server": {"limits": LIMITS, "open": True}})
        )
        token = (await known.tokens.create(ADMIN)).text
        bound = listen("127.0.0.1", 0)
        part = HttpService(create_app(known), bound)
        serving = asyncio.create_task(part.run())
        yield Live(bound.getsockname()[1], token)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def request(method: str, path: str, headers: list[tuple[str, str]], body: bytes, token: str) -> bytes:
    """A request as it goes over the wire."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        *(f"{name}: {text}" for name, text in headers),
    ]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body


@st.composite
def requests(draw: st.DrawFn, token: str) -> tuple[bytes, bool]:
    """A request to some route of ours, with any names, query, headers and body, and whether it is whole."""
    method, path = draw(st.sampled_from(ROUTES))
    for name in ("channel", "channelId", "consumer", "consumerId"):
        plausible = "orders" if name.startswith("channel") else "billing"
        path = path.replace(f"{{{name}}}", draw(st.one_of(st.just(plausible), TEXTS.map(_quoted))))
    while "{" in path:
        before, _, rest = path.partition("{")
        path = (
            before
            + draw(st.one_of(st.sampled_from(["1", "job:orders:billing:1"]), TEXTS.map(_quoted)))
            + rest.partition("}")[2]
        )
    words = ["after", "limit", "channel", "since", "text", "kinds", "act", "item", "patch"]
    query = draw(st.lists(st.tuples(st.sampled_from(words), TEXTS), max_size=2))
    path += "?" + "&".join(f"{name}={_quoted(text)}" for name, text in query) if query else ""
    body = draw(st.one_of(st.just(b""), BYTES, JSON.map(_dumped), FITTING.map(_dumped)))
    length = draw(st.sampled_from([None, None, None, 0, 1, 10**6, -1, "9" * 5_000, "²", "1, 1"]))
    headers = [
        ("Content-Type", draw(st.sampled_from(TYPES))),
        ("Content-Length", str(len(body) if length is None else length)),
    ]
    headers += draw(
        st.lists(
            st.tuples(
                st.sampled_from(
                    [
                        "Content-Encoding",
                        "Idempotency-Key",
                        "If-Match",
                        "Cookie",
                        "X-Broker-Channel-Token",
                        "Transfer-Encoding",
                        "Last-Event-ID",
                    ]
                ),
                TEXTS.filter(_one_line),
            ),
            max_size=2,
        )
    )
    whole = length in (None, 0, 1) and not any(name == "Transfer-Encoding" for name, _ in headers)
    return request(
        method, path[:7_000], headers, body, draw(st.sampled_from([token, token, token, "", "x"]))
    ), whole and length != 1


FITTING = st.fixed_dictionaries(
    {},
    optional={
        "data": JSON,
        "data_base64": TEXTS,
        "id": TEXTS,
        "key": TEXTS,
        "time": TEXTS,
        "headers": st.dictionaries(TEXTS, TEXTS, max_size=2),
        "at": TEXTS,
        "priority": JSON,
        "events": st.lists(st.fixed_dictionaries({"data": JSON, "id": TEXTS}), max_size=2),
        "limit": JSON,
        "wait": st.sampled_from(["0s", "x", "-1s", "9" * 400]),
        "kind": TEXTS,
        "filter": JSON,
        "items": st.lists(TEXTS, max_size=2),
        "patch": JSON,
        "lease": TEXTS,
        "jobs": JSON,
        "policy": JSON,
        "name": TEXTS,
        "scope": TEXTS,
        "all": st.booleans(),
    },
)


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass")[:500], safe="") or "%20"


def _one_line(text: str) -> bool:
    return "\r" not in text and "\n" not in text and len(text) < 500


def _dumped(value: object) -> bytes:
    try:
        return json.dumps(value).encode()
    except (ValueError, RecursionError):
        return b"[" * 5_000


async def judge(live: Live, sent: bytes, whole: bool) -> None:
    status, rest = await live.ask(sent, whole=whole)
    event(f"answered {status}" if whole else "not whole")
    assert status is not None or not whole, sent[:2_000]
    assert status is None or status < 500, (status, sent[:2_000], rest[:500])
    assert b"Traceback" not in rest


@fuzzed(1.5, shrink=False)
@given(data=st.data())
async def test_any_request_is_answered_below_500(live: Live, data: st.DataObject) -> None:
    await judge(live, *data.draw(requests(live.token)))


@fuzzed(shrink=False)
@given(st.one_of(BYTES, BYTES.map(lambda data: b"GET / HTTP/1.1\r\n" + data + b"\r\n\r\n")))
@example(b"GET / HTTP/1.1\r\nHost: \xff\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n")
@example(b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef")
@example(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nffffffffffffffff\r\n")
@example(b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n")
@example(b"GET http://[::1 HTTP/1.1\r\nHost: [::1\r\nOrigin: http://[\r\n\r\n")
async def test_any_bytes_leave_the_server_serving(live: Live, sent: bytes) -> None:
    await judge(live, sent, whole=False)
    status, _ = await live.ask(request("GET", "/healthz", [], b"", live.token))
    assert status == 200


LONG_TEXT = "://:" * 4_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/channels/orders/events", {"data": 1, "time": LONG_TEXT}),
        ("/api/v1/channels/orders/events", {"data": 1, "time": "0001-01-01T00:00:00+14:00"}),
        ("/api/v1/channels/orders/events", {"data": 1, "at": "9999-12-31T23:59:59-12:00"}),
        ("/api/v1/channels/orders/events", {"data": 1, "headers": {"\ud800": "x"}}),
        ("/api/v1/channels/orders/consumers/billing/poll", {"wait": LONG_TEXT}),
        ("/api/v1/channels/orders/consumers/billing/poll", {"wait": "9" * 15_000 + "s"}),
    ],
)
async def test_what_is_refused_is_refused_at_once(live: Live, path: str, body: object) -> None:
    content = json.dumps(body).encode()
    sent = request(
        "POST",
        path,
        [("Content-Type", "application/json"), ("Content-Length", str(len(content)))],
        content,
        live.token,
    )
    async with asyncio.timeout(30):
        status, _ = await live.ask(sent)
    assert status in (400, 413, 422)
