"""One store under two names is no pair of partitions: everything in it would be counted twice."""

from __future__ import annotations

import pytest

import holdfast
from stores import Store


async def test_a_store_that_is_listed_under_two_names_is_refused(store: Store) -> None:
    other = store.url.replace("127.0.0.1", "localhost")
    with pytest.raises(holdfast.InvalidInput, match=r"127\.0\.0\.1.* and localhost.* are the same store"):
        async with holdfast.connect([store.url, other]):
            raise AssertionError("it was opened")
    async with holdfast.connect(store.url) as bus:
        assert await bus.publish("orders", {}, id="a")
