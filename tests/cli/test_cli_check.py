"""`holdfast check`, as somebody asks it about a Redis or a NATS of their own."""

from __future__ import annotations

import pytest
import redis
from shell import Run

from holdfast.embedded import Nats, Redis


@pytest.mark.parametrize(
    ("make", "subject", "level"),
    [
        (lambda: Redis(), "appendfsync", "ok"),
        (lambda: Redis(appendfsync="everysec"), "appendfsync", "warning"),
        (lambda: Nats(), "sync_interval", "ok"),
        (lambda: Nats(sync_interval="2m"), "sync_interval", "warning"),
    ],
    ids=["redis", "weaker redis", "nats", "weaker nats"],
)
def test_every_server_is_asked_for_what_a_power_cut_costs(
    run: Run, make: type[Redis | Nats], subject: str, level: str
) -> None:
    with make() as server:
        answer = run("check", "--url", server.url)
        as_json = run("check", "--url", server.url, "--json").json
    assert answer.code == 0
    [finding] = [each for each in as_json if each["subject"] == subject]
    assert (finding["level"], "a power cut loses" in finding["message"]) == (level, True)
    assert finding["message"] in answer.out


def test_a_server_that_keeps_nothing_ends_with_1(run: Run) -> None:
    with Redis() as server:
        with redis.Redis.from_url(server.url) as client:
            client.config_set("appendonly", "no")
        answer = run("check", "--url", server.url)
    assert (answer.code, "a power cut or a restart loses everything" in answer.out) == (1, True)
