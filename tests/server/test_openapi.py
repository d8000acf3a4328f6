"""The OpenAPI document: valid, whole, and true about who may do what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.routing import iter_route_contexts
from house import house
from jsonschema import Draft202012Validator

import holdfast
from holdfast.server.app import bare_app
from holdfast.server.auth.guard import Need
from holdfast.server.routes import demands, routes_of

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
    async with house(bus) as found:
        routes = list(routes_of(found.app))
        assert len(routes) > 8
        for route in routes:
            assert len(list(demands(route.dependant))) == 1, f"{route.path} has not one verb"
        every = {route.path for route in iter_route_contexts(found.app.routes)}
        others = every - {route.path for route in routes}
        assert others <= {"/static"}


async def test_the_document_is_served_and_is_the_one_in_the_repository(bus: holdfast.Bus) -> None:
    async with house(bus, local=False) as found:
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
        for status in ("4XX", "5XX"):
            content = operation["responses"][status]["content"]
            assert content == {
                "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
            }, where


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
                assert value["$ref"].removeprefix("#/components/schemas/") in schemas
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
