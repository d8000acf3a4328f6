"""Tasks from the configuration: each type's own terms, and those of all others."""

from __future__ import annotations

from datetime import timedelta

from holdfast.bus.client import Bus
from holdfast.config.config import Config
from holdfast.tasks import TaskType
from holdfast.wiring import tasks


def test_every_type_has_its_terms() -> None:
    config = Config.model_validate(
        {
            "namespace": "shop",
            "sweeper": {"stuck_threshold": "90s"},
            "tasks": {"types": {"email": {"timeout": "2m", "max_retries": 1}, "report": {"max_retries": 7}}},
        }
    )
    made = tasks(Bus([]), config)
    assert made.namespace == "shop"
    assert made.types == {
        "email": TaskType(timedelta(minutes=2), 1),
        "report": TaskType(timedelta(seconds=90), 7),
    }
    assert made.default == TaskType(timedelta(seconds=90), 3)
