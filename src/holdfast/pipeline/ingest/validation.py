"""Validation: from rows of the source to rows of the WAL, with what is wrong beside each that is."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import orjson
import pyarrow as pa
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from holdfast.model.errors import InvalidInput
from holdfast.model.names import compile_pattern, most_specific
from holdfast.pipeline.arrow import headers_text
from holdfast.pipeline.wal import segments
from holdfast.pipeline.wal.batch import transaction_ids

_LONGEST = 500


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """What the data of a channel must be."""

    payload: Literal["json", "any"] = "json"
    """`any`: bytes that are no JSON are valid, and go into `data_base64`."""
    required: tuple[str, ...] = ()
    """Fields that the JSON object must have, other than null."""
    schema: str | None = None
    """A JSON Schema, as text."""


@dataclass(frozen=True, slots=True)
class ValidationRules:
    """By pattern; the most specific one decides. Where none does, the data must be JSON."""

    by_pattern: Mapping[str, ValidationRule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pattern, rule in self.by_pattern.items():
            compile_pattern(pattern)
            if rule.schema is not None:
                _check_schema(pattern, rule.schema)

    def of(self, channel: str) -> ValidationRule:
        """The rule of a channel."""
        pattern = most_specific(self.by_pattern, channel)
        return ValidationRule() if pattern is None else self.by_pattern[pattern]

    def problem(self, channel: str, data: bytes) -> str | None:
        """What is wrong with data for a channel."""
        return check_data(self.of(channel), data)[1]


def _check_schema(pattern: str, schema: str) -> None:
    try:
        Draft202012Validator.check_schema(orjson.loads(schema))
    except (orjson.JSONDecodeError, SchemaError) as error:
        brief = str(error).partition("\n")[0]
        raise InvalidInput(f"the schema for {pattern!r} is no JSON Schema: {brief}") from None


def check_data(rule: ValidationRule, data: bytes) -> tuple[bool, str | None]:
    """Whether data is JSON, and what is wrong with it."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return False, None if rule.payload == "any" else f"not JSON: {error}"
    if not rule.required and rule.schema is None:
        return True, None
    return True, _missing(rule.required, value) or _violation(rule.schema, value)


def _missing(required: Sequence[str], value: Any) -> str | None:
    if not required:
        return None
    if not isinstance(value, dict):
        return f"not an object: required fields are {', '.join(required)}"
    missing = [name for name in required if value.get(name) is None]
    return f"required fields are missing: {', '.join(missing)}" if missing else None


def _violation(schema: str | None, value: Any) -> str | None:
    if schema is None:
        return None
    error = next(_validator(schema).iter_errors(value), None)
    return None if error is None else f"{error.json_path}: {error.message}"[:_LONGEST]


@cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(orjson.loads(schema))


def to_segment_rows(rows: pa.Table, rules: ValidationRules) -> pa.Table:
    """Rows as the WAL keeps them: named, checked, with JSON as text."""
    data: list[bytes] = rows["data"].to_pylist()
    channels: list[str] = rows["channel"].to_pylist()
    by_channel = {channel: rules.of(channel) for channel in set(channels)}
    checked = [check_data(by_channel[channel], each) for channel, each in zip(channels, data, strict=True)]
    names, hashes = transaction_ids(channels, rows["source"].to_pylist(), rows["id"].to_pylist())
    columns = {name: rows[name] for name in ("partition", "channel", "position", "id")}
    columns |= {name: rows[name] for name in ("source", "type", "key", "time")}
    columns["headers"] = headers_text(rows["headers"])
    if all(is_json for is_json, _ in checked):
        columns["data"] = rows["data"].cast(pa.string())
        columns["data_base64"] = pa.nulls(len(data), pa.string())
    else:
        columns["data"] = pa.array(
            [each.decode() if is_json else None for each, (is_json, _) in zip(data, checked, strict=True)],
            pa.string(),
        )
        columns["data_base64"] = pa.array(
            [
                None if is_json else base64.b64encode(each).decode()
                for each, (is_json, _) in zip(data, checked, strict=True)
            ],
            pa.string(),
        )
    columns["transaction_id"] = pa.array(names, pa.string())
    columns["transaction_hash"] = pa.array(hashes, pa.int64())
    columns["problem"] = pa.array([problem for _, problem in checked], pa.string())
    return pa.table(columns).cast(segments.SCHEMA)
