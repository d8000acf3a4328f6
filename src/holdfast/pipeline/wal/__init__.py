"""The consumer's write-ahead log: between a channel and the warehouse, whole under one object-store path.

    segments/{time}-{token}.parquet                       staged by executors; unseen until a batch names it
    planned/{batch}.json                                  which ranges of the log a batch holds, written first
    pending/{batch}.json                                  the one atomic step: the WAL has the events
    leases/{batch}/{n}.json                               who works on it, and until when
    attempts/{batch}/{n}.json                             what went wrong, and when to try again
    failed/{batch}/{channel}@{partition}@{position}.json  one record that gave up, with its event
    failed/{batch}/rest.json                              the batch gave up: all others of its records
    confirmed/{batch}.json                                the warehouse has it; `planned` and `pending` go
    quarantine/{batch}/{n}.json                           damaged, until repairs/{batch}/{n}.json is there
    lost/{batch}.json                                     damaged for good, and somebody accepted it
    acts/{batch}/{failed id}/{n}.json                     what an operator did about a failed record
    mirrored/{batch}/{what}.json                          `failed_events` in the warehouse knows it

Every object is written once, if absent: a transition is a new object, never a rename or an overwrite.
Nothing here needs Spark.
"""

from holdfast.pipeline.wal.batch import BatchPart, Segment, StagedSegment, WalBatch
from holdfast.pipeline.wal.log import Wal, WalSettings

__all__ = ["BatchPart", "Segment", "StagedSegment", "Wal", "WalBatch", "WalSettings"]
