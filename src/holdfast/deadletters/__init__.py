"""Dead letters: counts, one list of three kinds, operations on them, and the audit of who did what."""

from holdfast.deadletters.audit import Audit
from holdfast.deadletters.items import (
    ClusterView,
    ConsumerDead,
    Count,
    Detail,
    Filter,
    Item,
    ItemId,
    ItemPage,
    Verified,
    job_item,
    parse_item,
)
from holdfast.deadletters.operation import Canary, Operation, OperationOptions, Progress, Request
from holdfast.deadletters.operations import Operations, Preview
from holdfast.deadletters.payloads import Change
from holdfast.deadletters.runner import Runner
from holdfast.deadletters.service import DeadLetters, Folding

__all__ = [
    "Audit",
    "Canary",
    "Change",
    "ClusterView",
    "ConsumerDead",
    "Count",
    "DeadLetters",
    "Detail",
    "Filter",
    "Folding",
    "Item",
    "ItemId",
    "ItemPage",
    "Operation",
    "OperationOptions",
    "Operations",
    "Preview",
    "Progress",
    "Request",
    "Runner",
    "Verified",
    "job_item",
    "parse_item",
]
