"""Failpoints: the variable names places and actions, or its process does not start."""

from __future__ import annotations

from hostile import TEXTS, fuzzed
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import failpoints

ITEMS = st.tuples(
    st.sampled_from(["worker.after_claim", "publish.after_commit", "", "nowhere"]),
    st.sampled_from(["=", "", "=="]),
    st.sampled_from(["kill", "stop", "raise", "Kill", ""]),
    st.sampled_from(["", ":", ":1", ":-1", ":²", ":٣", ":" + "9" * 5_000]),
).map("".join)


@fuzzed()
@given(st.one_of(TEXTS, st.lists(ITEMS, max_size=3).map(";".join)))
@example("worker.after_claim=raise:" + "9" * 5_000)
def test_the_variable_is_understood_or_refused_by_its_name(text: str) -> None:
    try:
        failpoints.activate_from({failpoints.VARIABLE: text})
    except ValueError as error:
        if failpoints.VARIABLE not in str(error) and "unknown failpoint" not in str(error):
            raise
    finally:
        failpoints.clear()
