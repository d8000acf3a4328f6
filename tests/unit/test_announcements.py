"""System events: every one has a schema in which every field is described."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.upkeep.announcements import ALL, Announcement


@pytest.mark.parametrize("announcement", ALL)
def test_every_field_is_described(announcement: type[Announcement]) -> None:
    schema = announcement.model_json_schema()
    objects: list[dict[str, Any]] = [schema, *schema.get("$defs", {}).values()]
    for each in objects:
        assert each["description"]
        bare = [name for name, field in each["properties"].items() if "description" not in field]
        assert bare == []


def test_topics_are_all_different() -> None:
    assert sorted(each.topic for each in ALL) == ["archive", "audit", "discard", "error", "retry", "sweep"]
