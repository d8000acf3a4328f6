"""What becomes a mutant, and that it is told from what nothing notices."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutate import Mutant, mutants
from run_mutants import GROUPS, SOURCE, Group, Tree, found

SQL = """\
-- A comment AND x = y is no code.
UPDATE holdfast.jobs SET state = 'dead', token = token + 1 WHERE id = %(id)s AND token = %(token)s
  AND NOT held AND due_at <= now() FOR UPDATE SKIP LOCKED;
"""
LUA = """\
if token == f[1] and state ~= 'leased' then -- or not
  redis.call('HSET', key.job(c.ref, id), 'state', 'ready')
end
"""
PYTHON = """\
def spent(attempts: int, most: int) -> bool:
    return not attempts + 1 < most and (
        attempts == 0
        or attempts > 3
    )
"""


def changes(path: str, source: str) -> set[tuple[str, str, str]]:
    return {(each.kind, each.before, each.after) for each in mutants(path, source)}


def test_what_sql_becomes() -> None:
    assert changes("a.sql", SQL) == {
        ("assignment", "state = 'dead',", ""),
        ("conjunct", "AND token = %(token)s", ""),
        ("conjunct", "AND NOT held", ""),
        ("lock", "FOR UPDATE SKIP LOCKED", ""),
        ("bound", "<=", "<"),
        ("state", "'dead'", "'done'"),
        ("one", "+ 1", ""),
    }


def test_what_lua_becomes() -> None:
    assert changes("a.lua", LUA) == {
        ("conjunct", "and state ~= 'leased'", ""),
        ("assignment", "redis.call('HSET', key.job(c.ref, id), 'state', 'ready')", ""),
        ("equal", "==", "~="),
        ("equal", "~=", "=="),
        ("state", "'leased'", "'ready'"),
        ("state", "'ready'", "'scheduled'"),
    }


def test_what_python_becomes() -> None:
    assert changes("a.py", PYTHON) == {
        ("not", "not", ""),
        ("one", "+ 1", ""),
        ("bound", "<", "<="),
        ("bound", ">", ">="),
        ("equal", "==", "!="),
        ("conjunct", "or attempts > 3", ""),
    }


def test_a_mutant_changes_its_place_and_nothing_else() -> None:
    for each in mutants("a.sql", SQL):
        assert SQL[each.start : each.end].strip() == each.before
        assert each.applied(SQL) == SQL[: each.start] + each.text + SQL[each.end :]


def test_every_group_has_mutants_of_valid_python() -> None:
    for group in GROUPS.values():
        some = [mutant for mutant, _ in found(group)]
        assert some
        for each in some:
            if each.path.endswith(".py"):
                compile(each.applied((SOURCE / each.path).read_text()), each.path, "exec")


@pytest.mark.parametrize(("after", "killed"), [("max", True), ("min", False)])
def test_a_mutant_is_killed_where_a_test_fails(tmp_path: Path, after: str, killed: bool) -> None:
    source = (SOURCE / "model" / "backoff.py").read_text()
    start = source.index("min(first * 2.0")
    mutant = Mutant("model/backoff.py", 0, "name", "min", after, start, start + 3, after)
    test = tmp_path / "test_backoff.py"
    test.write_text(
        dedent("""
            from holdfast.model.backoff import backoff_seconds

            def test_it_is_bounded():
                assert backoff_seconds(60, 1, 5, jitter=0) == 5
        """)
    )
    tree = Tree(tmp_path / "tree")
    assert tree.tested(Group((), (str(test),)), mutant)[0] is killed
