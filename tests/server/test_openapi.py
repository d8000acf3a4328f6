"""The OpenAPI document: valid, whole, and true about who may do what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from application import application
from fastapi.routing import iter_route_contexts
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo

import holdfast
from holdfast.deadletters.items import parse_item, parse_public
from holdfast.model.duration import parse_duration
from holdfast.model.errors import InvalidInput
from holdfast.model.event import check_event
from holdfast.model.names import check_name
from holdfast.server.api.models import EventIn
from holdfast.server.app import bare_app
from holdfast.server.auth.guard import Need, demands
from holdfast.server.routes import routes_of

SPEC = Path(__file__).parents[2] / "docs" / "open-api-spec" / "api-spec.yaml"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return bare_app().openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


async def test_every_route_demands_something_of_its_callers(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        routes = list(routes_of(found.app))
        assert len(routes) > 8
        for route in routes:
            assert len(list(demands(route.dependant))) == 1, f"{route.path} has not one verb"
        every = {route.path for route in iter_route_contexts(found.app.routes)}
        others = every - {route.path for route in routes}
        assert others <= {"/static"}


async def test_the_document_is_served_and_is_the_one_in_the_repository(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        await found.token("admin")
        served = (await found.client.get("/openapi.json")).json()
    assert served["openapi"].startswith("3.1")
    assert served == yaml.safe_load(SPEC.read_text())


def test_every_operation_has_an_id_a_tag_a_summary_and_problems(document: dict[str, Any]) -> None:
    found = operations(document)
    ids = [operation["operationId"] for _, _, operation in found]
    assert len(set(ids)) == len(ids) > 5
    for path, method, operation in found:
        where = f"{method} {path}"
        assert operation["tags"], where
        assert operation["summary"], where
        assert operation["description"], where
        refused = {status for status in operation["responses"] if status >= "4"}
        assert {"400", "403", "408", "413", "415", "431", "500", "503", "504"} <= refused, where
        assert ("401" in refused) == ("429" in refused) == ("security" in operation), where
        assert ("422" in refused) == ("parameters" in operation or "requestBody" in operation), where
        for status in refused:
            assert "application/problem+json" in resolved(document, operation["responses"][status])["content"]


def resolved(document: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """What it refers to, or itself."""
    for step in value.get("$ref", "").split("/")[1:]:
        value = document[step] if step == "components" else value[step]
    return value


# Of each text with a form: what the server reads, and what it does not. The document must say the same.
TEXTS: dict[str, tuple[Any, list[str], list[str]]] = {
    "Poll.wait": (parse_duration, ["0s", "1h30m", "2.5d", "15m"], ["", "5", "soon", "1s!"]),
    "OperationIn.items": (
        parse_item,
        ["job:orders:billing:42", "job:a.b:c:1-2@3", "ingest:0198-a", "stream:gbe._deadletter.a:7@12"],
        ["", "job:orders:42", "job:A:b:1", "job:a:b:1@0", "ingest:1@2", "stream:a..b:1", "queue:a:b:1"],
    ),
    "NamedEnding.id": (parse_public, ["42", "1-0", "42@3"], ["", "42@", "42@0", "4 2", "-1"]),
    "ConsumerIn.dead_letter": (check_name, ["orders", "a.b-c_d"], ["", "A", "a..b", "a.", ".a", "_a"]),
}


@pytest.mark.parametrize("where", TEXTS)
def test_a_text_with_a_form_has_it_in_the_document(document: dict[str, Any], where: str) -> None:
    read, good, bad = TEXTS[where]
    model, field = where.split(".")
    schema = document["components"]["schemas"][model]["properties"][field]
    described = Draft202012Validator(schema.get("items", schema))
    for text in good:
        read(text)
        described.validate(text)
    for text in bad:
        with pytest.raises(InvalidInput):
            read(text)
        assert not described.is_valid(text), text


@pytest.mark.parametrize(
    ("event", "fits"),
    [
        ({}, True),
        ({"data": 1}, True),
        ({"data": None, "data_base64": "YQ=="}, True),
        ({"data": 1, "data_base64": None}, True),
        ({"data": 1, "data_base64": "YQ=="}, False),
        ({"data_base64": "YQ="}, False),
        ({"data_base64": "Y Q=="}, False),
        ({"id": "a\x00b"}, False),
        ({"source": "holdfast"}, False),
        ({"headers": {"Holdfast-Origin": "a"}}, False),
        ({"headers": {"a": "b\nc"}}, False),
        ({"headers": {"a\tb": "b"}}, False),
        ({"headers": {"a": "b"}}, True),
    ],
)
def test_an_event_that_fits_the_document_is_taken(document: dict[str, Any], event: Any, fits: bool) -> None:
    schema = {"$ref": "#/components/schemas/EventIn", "components": document["components"]}
    assert Draft202012Validator(schema).is_valid(event) == fits
    if fits:
        check_event(EventIn.model_validate(event).event())
    else:
        with pytest.raises(InvalidInput):
            check_event(EventIn.model_validate(event).event())


def test_every_operation_says_which_token_it_takes(document: dict[str, Any]) -> None:
    routes = [route for route in routes_of(bare_app()) if route.include_in_schema]
    assert len(routes) >= len(document["paths"])
    for route in routes:
        [demand] = demands(route.dependant)
        for method in route.methods or ():
            operation = document["paths"][route.path_format][method.lower()]
            if isinstance(demand, Need):
                assert {"bearer": []} in operation["security"]
                assert operation["x-holdfast-verb"] == demand.verb
            else:
                assert "security" not in operation


def test_every_schema_is_one_and_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert {"DLQStatus", "Problem", "JobStatus"} <= set(schemas)
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                assert resolved(document, value)
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(document)


def test_the_status_of_the_broker_is_described_in_its_own_names(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert set(schemas["DLQStatus"]["properties"]) == {"consumers"}
    assert set(schemas["DLQConsumer"]["properties"]) == {
        "channelId",
        "channelName",
        "consumerId",
        "consumerName",
        "deadCount",
    }
    for path, method in (
        ("/dlq-status", "get"),
        ("/job-status", "get"),
        ("/channel/{channelId}/consumer/{consumerId}/dlq", "get"),
        ("/channel/{channelId}/consumer/{consumerId}/dlq", "post"),
        ("/channel/{channelId}/consumer/{consumerId}/dlq", "delete"),
        ("/channel/{channelId}/consumer/{consumerId}/job/{jobId}", "delete"),
    ):
        assert method in document["paths"][path]
    for each in document["paths"]["/channel/{channelId}/consumer/{consumerId}/dlq"].values():
        assert {"channelToken": [], "consumerToken": []} in each["security"]


def integers(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """The whole numbers of a body, those of the models in it too."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        kinds += [each for kind in kinds for each in get_args(kind)]
        if int in kinds:
            yield f"{model.__name__}.{name}", field
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from integers(kind)


def test_a_whole_number_may_be_written_as_a_fraction_wherever_a_body_has_one() -> None:
    """For JSON Schema 5.0 is an integer, and many programs write it so."""
    bodies = [route.body_field.field_info.annotation for route in routes_of(bare_app()) if route.body_field]
    found = dict(each for body in bodies for each in integers(body))
    assert len(found) > 5
    for name, field in found.items():
        accepts = TypeAdapter(field.rebuild_annotation(), config=ConfigDict(strict=True))
        assert accepts.validate_python(1.0) == 1, name
