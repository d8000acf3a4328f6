"""Types: which handlers take data, how a misfit is told, and how models are published."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model, field_validator
from typing_extensions import TypedDict

import holdfast
from holdfast.bus.handler import Handler
from holdfast.model.decide import describe
from holdfast.model.errors import InvalidData, InvalidInput
from holdfast.typed import json_schema, reader

if TYPE_CHECKING:
    from holdfast import Job


class Card(BaseModel):
    kind: Literal["card"]
    number: str


class Cash(BaseModel):
    kind: Literal["cash"]


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")
    price: Annotated[int, Field(gt=0)]


class Order(BaseModel):
    total: float
    pay: Annotated[Card | Cash, Field(discriminator="kind")] = Cash(kind="cash")
    lines: list[Line] = []
    prices: dict[str, int] = {}
    either: int | str | None = None
    at: datetime | None = None
    full: str = Field("", alias="fullName", max_length=3)

    @field_validator("total")
    @classmethod
    def _small(cls, value: float) -> float:
        if value > 100:
            raise ValueError("a total over the limit")
        return value


@dataclass
class Move:
    at: datetime
    by: Decimal


class Point(TypedDict):
    x: int


def untyped_none(event) -> None: ...  # type: ignore[no-untyped-def]  # as people write them
def untyped_event(event: holdfast.Event) -> None: ...
def untyped_any(event: Any, job: holdfast.Job) -> None: ...
def untyped_optional(event: holdfast.Event | None) -> None: ...
def untyped_checked(event: holdfast.Event, job: Job) -> None: ...
def untyped_rest(*args: holdfast.Event) -> None: ...
def typed_order(order: Order) -> None: ...
def typed_two(order: Order, job: Job) -> None: ...
def typed_list(numbers: list[int]) -> None: ...
def typed_bound(rate: int, order: Order) -> None: ...


@functools.wraps(typed_order)
def typed_wrapped(*args: Any) -> None: ...


class Typed:
    def __call__(self, order: Order) -> None: ...
    def method(self, order: Order) -> None: ...
    @staticmethod
    def static(order: Order) -> None: ...


def handler(function: Callable[..., Any]) -> Handler:
    return Handler("orders", "billing", function, {})


@pytest.mark.parametrize(
    "function",
    [
        untyped_none,
        untyped_event,
        untyped_any,
        untyped_optional,
        untyped_checked,
        untyped_rest,
        lambda event: None,
    ],
)
def test_a_handler_that_takes_the_event_gets_it_as_before(function: Callable[..., Any]) -> None:
    assert handler(function).read is None


@pytest.mark.parametrize(
    "function",
    [
        typed_order,
        typed_two,
        typed_wrapped,
        Typed(),
        Typed().method,
        Typed.static,
        functools.partial(Typed()),
    ],
)
def test_any_other_type_is_what_it_gets(function: Callable[..., Any]) -> None:
    read = handler(function).read
    assert read is not None
    assert read(b'{"total": 3, "fullName": "Ann"}') == Order(total=3.0, fullName="Ann")


def test_a_partial_with_the_first_parameter_bound_leaves_the_next() -> None:
    read = handler(functools.partial(typed_bound, 5)).read
    assert read is not None
    assert read(b'{"total": 3}') == Order(total=3)


def test_types_of_every_form_are_read() -> None:
    for annotation, data, value in (
        (list[int], b"[1, 2]", [1, 2]),
        (
            Move,
            b'{"at": "2030-01-01T00:00:00Z", "by": "1.5"}',
            Move(datetime(2030, 1, 1, tzinfo=UTC), Decimal("1.5")),
        ),
        (Point, b'{"x": 1}', {"x": 1}),
        (Annotated[int, Field(gt=0)], b"5", 5),
        (Order | list[int], b"[1]", [1]),
        (dict, b'{"a": 1}', {"a": 1}),
        (Literal["a"], b'"a"', "a"),
    ):
        assert reader(annotation)(data) == value


class Unfinished(BaseModel):
    other: Missing  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        ("Parcel", "cannot be found"),
        ("Order[", "cannot be found"),
        ("Unfinished", "no type that pydantic can validate"),
        (5, "no type that pydantic can validate"),
        (Handler.bind, "no type that pydantic can validate"),
    ],
)
def test_a_type_that_cannot_be_validated_is_refused_at_registration(annotation: Any, words: str) -> None:
    def take(order: Any) -> None: ...

    take.__annotations__["order"] = annotation
    with pytest.raises(InvalidInput, match="consumer 'billing' of 'orders'") as refused:
        holdfast.App().handler("orders", "billing")(take)
    assert words in str(refused.value)


def misfit(data: bytes, annotation: Any = Order) -> str:
    with pytest.raises(InvalidData) as refused:
        reader(annotation)(data)
    return str(refused.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{}", "total: Field required"),
        (b'{"total": "SECRET"}', "total: Input should be a valid number"),
        (
            b'{"total": 1, "lines": [{"price": 3}, {"price": -7}]}',
            "lines.1.price: Input should be greater than 0",
        ),
        (b'{"total": 1, "lines": [{"price": 3, "SECRET": 1}]}', "lines.0.*: Extra inputs are not permitted"),
        (b'{"total": 1, "prices": {"SECRET": "x"}}', "prices.*: Input should be a valid integer"),
        (b'{"total": 1, "pay": {"kind": "SECRET"}}', "pay: union_tag_invalid"),
        (b'{"total": 1, "pay": {"kind": "card"}}', "pay.card.number: Field required"),
        (
            b'{"total": 1, "either": []}',
            "either.*: Input should be a valid integer; either.*: Input should be a valid string",
        ),
        (b'{"total": 1, "at": "SECRET"}', "at: datetime_from_date_parsing"),
        (b'{"total": 1, "fullName": "SECRET"}', "fullName: String should have at most 3 characters"),
        (b'{"total": 101}', "total: Value error, a total over the limit"),
        (b'["SECRET"]', "Input should be an object"),
    ],
)
def test_a_misfit_names_the_field_and_nothing_of_the_data(data: bytes, words: str) -> None:
    told = misfit(data)
    assert told.startswith("the data does not fit Order: ")
    assert words in told
    assert "SECRET" not in told


@pytest.mark.parametrize("data", [b"", b"\xff\x00SECRET", b"{'a': 1}", b"SECRET", b"[" * 10_000])
def test_what_is_not_json_is_said_to_be_so(data: bytes) -> None:
    told = misfit(data)
    assert told.startswith("the data is not JSON, at line 1 column ")
    assert "holdfast.Event" in told
    assert "SECRET" not in told


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'{"total": "x"}', b'{"total": "many words"}', True),
        (
            b'{"total": 1, "lines": [{"price": -1}]}',
            b'{"total": 2, "lines": [{"price": 1}, {"price": -2}, {"price": -3}]}',
            True,
        ),
        (b'{"total": 1, "prices": {"a": "x"}}', b'{"total": 1, "prices": {"b": "y", "c": "z"}}', True),
        (b"{", b'{"total": ', True),
        (b'{"total": "x"}', b"{}", False),
        (b'{"total": "x"}', b'{"total": 1, "at": "x"}', False),
    ],
)
def test_one_kind_of_misfit_is_one_cluster(one: bytes, other: bytes, same: bool) -> None:
    prints = [describe(InvalidData(misfit(each))).fingerprint for each in (one, other)]
    assert (prints[0] == prints[1]) == same


def test_a_type_with_odd_names_and_defaults_is_read() -> None:
    odd = {"enum": 5, "properties": 7, "const": None}
    names = {"enum": (int, ...), "const": (int, 1), "properties": (dict, odd), "other": (Any, object())}
    assert misfit(b"{}", create_model("Odd", **names)) == "the data does not fit Odd: enum: Field required"  # type: ignore[call-overload]
    odder = create_model(
        "Odder", a=(dict, {"$defs": "x"}), b=(int, ...)
    )  # pydantic makes no JSON Schema of it
    assert misfit(b"{}", odder) == "the data does not fit Odder: *: Field required"
    with pytest.raises(InvalidInput, match="has no JSON Schema"):
        json_schema(odder)


def test_a_misfit_of_a_large_list_is_short() -> None:
    told = misfit(b"[" + b",".join([b"null"] * 100_000) + b"]", list[int])
    assert told == "the data does not fit list[int]: 0: Input should be a valid integer"
    fields = {f"f{n}": (int, ...) for n in range(50)}
    assert misfit(b"{}", create_model("Wide", **fields)).count(";") == 5  # type: ignore[call-overload]


def test_a_model_is_published_as_its_type_reads_it() -> None:
    order = Order(total=3, fullName="Ann", at=datetime(2030, 1, 1, tzinfo=UTC))
    for value in (order, Move(datetime(2030, 1, 1, tzinfo=UTC), Decimal("1.5")), RootModel[list[int]]([1])):
        assert reader(type(value))(holdfast.Event(value).data) == value


def test_a_model_that_is_not_what_its_type_says_is_refused() -> None:
    broken = Order.model_construct(total=object())
    with pytest.raises(InvalidInput, match="a value of Order is no JSON value"):
        holdfast.Event(broken)
    with pytest.raises(InvalidInput, match="is no JSON value"):
        holdfast.Event({"at": datetime(2030, 1, 1, tzinfo=UTC)})
    with pytest.raises(InvalidInput, match="is no JSON value"):
        holdfast.Event(Order)
