"""Checks of jobs: counted, completed once, fenced, leased in turn, bounded, ended (I3-I6, I15, I17)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, pairwise

from holdfast_chaos.final_state import FinalState, JobMove, Key, Owner
from holdfast_chaos.history import Call, accepted, job_key, of


def miscounted(store: FinalState) -> Iterator[str]:
    """Created jobs that are in no state, or counters that differ from a count."""
    if store.moves is not None:
        created = {move.key for move in store.moves if move.before is None}
        standing = {row.key for row in store.rows}
        for key in created ^ standing:
            yield f"job {key} was created {key in created}, and has a state {key in standing}"
    found = _counts(store)
    for owner, terms in store.terms.items():
        dead = {name for name in found[owner] if name.startswith("dead:")}
        for name in terms.counted.keys() | dead:
            if (count := found[owner][name]) != (counted := terms.counted.get(name, 0)):
                yield f"{owner} has {count} jobs that are {name}, and the counter says {counted}"


def _counts(store: FinalState) -> dict[Owner, Counter[str]]:
    """The jobs of each consumer by state, the dead ones also by reason."""
    found: dict[Owner, Counter[str]] = defaultdict(Counter)
    for row in store.rows:
        names = [row.state, f"dead:{row.reason}"] if row.state == "dead" else [row.state]
        found[row.channel, row.consumer].update(names)
    return found


def misplaced(store: FinalState) -> Iterator[str]:
    places = Counter(row.key for row in store.rows)
    for key, count in places.items():
        if count > 1:
            yield f"job {key} is in {count} places at once"


def completed_twice(calls: list[Call], store: FinalState) -> Iterator[str]:
    """A done job without exactly one accepted completion. One whose answer was lost may have been it."""
    yes = Counter(job_key(item) for item in accepted(calls, "complete"))
    lost = {job_key(i) for c in of(calls, "complete") if c.outcome == "unknown" for i in c.items}
    done = {row.key for row in store.rows if row.state == "done"}
    for key, count in yes.items():
        if count > 1:
            yield f"job {key} was completed {count} times"
        if key not in done:
            yield f"job {key} was told to be done and is not"
    for key in done - yes.keys() - lost:
        yield f"job {key} is done, and nobody completed it"
    moves = store.moves or []
    left = Counter(move.key for move in moves if move.after is None)
    entered = Counter(move.key for move in moves if move.before is None)
    for key in (key for key, count in left.items() if count > entered[key]):
        yield f"job {key} ended {left[key]} times and was created {entered[key]} times"


def over_budget(store: FinalState) -> Iterator[str]:
    for row in store.rows:
        terms = store.terms.get((row.channel, row.consumer))
        if terms is None:
            yield f"job {row.job} is left of {row.consumer}, who was removed"
        elif row.attempts > terms.max_attempts or row.abandonments > terms.max_abandonments:
            yield f"job {row.job} has {row.attempts} attempts and {row.abandonments} abandonments: {terms}"


_ENDS = {"complete": "end", "bury": "end", "retry": "back", "extend": "stay"}


def stale(calls: list[Call]) -> Iterator[str]:
    """Accepted for a token although a newer one had been issued before that was asked for."""
    issued: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for call in of(calls, "claim"):
        for item in call.answers:
            issued[job_key(item)].append((item["token"], call.ended))
    for call in of(calls, *_ENDS):
        for item in (item for item, yes in call.told() if yes is True):
            key, token = job_key(item), item["token"]
            for newer in (each for each, known in issued[key] if each > token and known < call.at):
                yield f"{call.verb} of job {key} was accepted with token {token} after {newer} was issued"


def outdated(calls: list[Call], store: FinalState) -> Iterator[str]:
    """A job whose token is older than one that was issued, or that is done under another than accepted."""
    tokens = {row.key: row.token for row in store.rows}
    for item in chain.from_iterable(call.answers for call in of(calls, "claim")):
        if item["token"] > tokens.get(job_key(item), item["token"]):
            yield f"job {job_key(item)} was leased under the token {item['token']}, and has an older one"
    for item in accepted(calls, "complete"):
        if item["token"] != tokens.get(job_key(item), item["token"]):
            yield f"job {job_key(item)} ended under the token {item['token']}, and has another one"


def unmoved(calls: list[Call], store: FinalState) -> Iterator[str]:
    """Accepted for a token under which the witness saw nothing move."""
    if store.moves is None:
        return
    moved = {(_kind(move), move.key, move.old_token) for move in store.moves if move.before == "leased"}
    for verb, kind in _ENDS.items():
        for item in accepted(calls, verb):
            if (kind, job_key(item), item["token"]) not in moved:
                yield f"{verb} of job {job_key(item)} was accepted, and nothing moved under {item['token']}"


def fallen(store: FinalState) -> Iterator[str]:
    for move in store.moves or []:
        if move.token is not None and move.old_token is not None and move.token < move.old_token:
            yield f"the token of job {move.key} fell from {move.old_token} to {move.token}"


def overlapping(store: FinalState) -> Iterator[str]:
    """A lease that began, or was taken back, before the deadline of the one before it."""
    reasons = {row.key: row.reason for row in store.rows}
    abandonments: dict[Key, int] = defaultdict(int)
    for move in store.moves or []:
        key, early = move.key, move.old_lease is not None and move.at < move.old_lease
        if early and move.after == "leased" and move.token != move.old_token:
            yield f"job {key} was leased at {move.at} while its lease ran until {move.old_lease}"
        crashed = move.after is None and reasons.get(key) == "crash_loop"
        if early and (crashed or move.abandonments > abandonments[key]):
            yield f"job {key} was taken back at {move.at}, before its deadline at {move.old_lease}"
        abandonments[key] = move.abandonments


def overlapping_claims(calls: list[Call], store: FinalState) -> Iterator[str]:
    """Of two leases in a row, one that began while the other ran and had not ended."""
    back = {
        (job_key(item), item["token"])
        for call in of(calls, "retry", "bury")
        for item, yes in call.told() or [(each, True) for each in call.items]
        if yes
    }
    taken = {job_key(item) for item in accepted(calls, "requeue")}
    leases: dict[Key, list[tuple[int, datetime]]] = defaultdict(list)
    for item in chain.from_iterable(call.answers for call in of(calls, "claim")):
        leases[job_key(item)].append((item["token"], datetime.fromisoformat(item["until"])))
    for key, held in leases.items():
        if (terms := store.terms.get(key[:2])) is None or key in taken:
            continue  # their consumer was removed, or an operator took them away
        for (token, until), (_, later) in pairwise(sorted(held)):
            began = later - terms.lease
            if began < until and (key, token) not in back:
                yield f"job {key} was leased at {began} while its lease {token} ran until {until}"


def leased_twice(calls: list[Call]) -> Iterator[str]:
    leases = Counter((job_key(item), item["token"]) for call in of(calls, "claim") for item in call.answers)
    for (key, token), count in leases.items():
        if count > 1:
            yield f"job {key} was leased {count} times under the token {token}"


def overfull(calls: list[Call], store: FinalState) -> Iterator[str]:
    """More jobs that nobody has touched than a bound lets in: one publish at the most goes over it."""
    bounds = {owner: terms.max_depth for owner, terms in store.terms.items() if terms.max_depth is not None}
    if not bounds:
        return
    largest = max((len(call.items) for call in of(calls, "publish")), default=1)
    untouched = Counter((row.channel, row.consumer) for row in store.rows if row.live and row.token == 0)
    for owner, bound in bounds.items():
        if untouched[owner] >= bound + largest:
            yield f"{untouched[owner]} jobs wait for {owner}, which is bounded to {bound}"


def left(store: FinalState) -> Iterator[str]:
    for row in store.rows:
        if row.live:
            yield f"job {row.job} of {row.consumer} is still {row.state}"


def _kind(move: JobMove) -> str:
    if move.after is None:
        return "end"
    return "stay" if move.after == "leased" and move.token == move.old_token else "back"
