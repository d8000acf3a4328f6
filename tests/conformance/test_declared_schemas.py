"""Schemas of channels, on every store: declared, changed at once by many, refused where they would break."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel

import holdfast
from holdfast.contracts import Backend
from holdfast.model.errors import Incompatible, InvalidInput
from kit import CHANNEL

TEXT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


class Order(BaseModel):
    total: int


async def test_a_schema_is_declared_changed_and_removed(bus: holdfast.Bus) -> None:
    assert await bus.schema(CHANNEL) is None
    made = await bus.declare(CHANNEL, Order)
    assert made == await bus.schema(CHANNEL)
    assert (made.version, made.schema["required"]) == (1, ["total"])
    assert await bus.declare(CHANNEL, Order.model_json_schema()) == made  # the same again changes nothing
    wider = {"type": "object", "properties": {"total": {"type": "number"}, "note": {"type": "string"}}}
    assert (await bus.declare(CHANNEL, wider)).version == 2
    with pytest.raises(Incompatible, match="total: is required now") as refused:
        await bus.declare(CHANNEL, Order)
    assert refused.value.reasons == ("total: is required now", "total: was number, is integer now")
    assert (await bus.declare(CHANNEL, Order, force=True)).version == 3
    schemas = await bus.schemas()
    assert await schemas.remove(CHANNEL)
    assert not await schemas.remove(CHANNEL)
    assert (await bus.declare(CHANNEL, TEXT)).version == 1  # it is compared with nothing
    assert CHANNEL in await bus.partitions.all[0].backend.channels.names()


async def test_of_many_who_declare_at_once_none_overwrites_what_it_has_not_seen(bus: holdfast.Bus) -> None:
    """Each schema refuses what each other one allows, so that only one can be the first."""
    wanted = [{"const": number} for number in range(8)]
    found = await asyncio.gather(*(bus.declare(CHANNEL, each) for each in wanted), return_exceptions=True)
    made = [each for each in found if not isinstance(each, BaseException)]
    assert len(made) == 1
    assert {type(each) for each in found} - {type(made[0])} == {Incompatible}
    assert await bus.schema(CHANNEL) == made[0]
    widening = [{"enum": [made[0].schema["const"], *range(10, 11 + n)]} for n in range(4)]
    await asyncio.gather(*(bus.declare(CHANNEL, each) for each in widening), return_exceptions=True)
    stored = await bus.schema(CHANNEL)
    assert stored is not None
    assert made[0].schema["const"] in stored.schema["enum"]


async def test_a_large_schema_and_odd_texts_survive(bus: holdfast.Bus) -> None:
    odd = {"enum": ["ä€😀", "\x00", "\ud800", '"', "\\", "\n"], "description": "x" * 100_000}
    await bus.declare(CHANNEL, odd)
    stored = await bus.schema(CHANNEL)
    assert stored is not None
    assert stored.schema == odd


async def test_a_record_that_is_no_schema_is_named_and_can_be_replaced(
    bus: holdfast.Bus, backend: Backend
) -> None:
    await backend.records.put(f"gbe.state.schemas.{CHANNEL}", {"schema": "{", "version": "1"}, 0)
    with pytest.raises(InvalidInput, match=f"gbe.state.schemas.{CHANNEL}"):
        await bus.schema(CHANNEL)
    with pytest.raises(InvalidInput, match="by force"):
        await bus.declare(CHANNEL, Order)
    await bus.declare(CHANNEL, Order, force=True)
    assert await bus.schema(CHANNEL) is not None
