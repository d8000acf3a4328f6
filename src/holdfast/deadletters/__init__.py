"""Dead letters: counts, one list of three kinds, operations on them, and the audit of who did what."""

from holdfast.deadletters.audit import Audit
from holdfast.deadletters.folding import Folding
from holdfast.deadletters.ids import ItemId, job_item, parse_item
from holdfast.deadletters.items import (
    ClusterView,
    ConsumerDead,
    Count,
    Detail,
    Filter,
    Item,
    ItemPage,
    Verified,
)
from holdfast.deadletters.operation import Canary, Operation, Options, Progress, Request
from holdfast.deadletters.operations import Operations, Preview
from holdfast.deadletters.patching import Change
from holdfast.deadletters.runner import Runner
from holdfast.deadletters.service import DeadLetters

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
    "Operations",
    "Options",
    "Preview",
    "Progress",
    "Request",
    "Runner",
    "Verified",
    "job_item",
    "parse_item",
]
