"""How the benchmark of the backlog judges: its goals are pure functions of the figures."""

from bench.backlog_goals import GOALS, LABELS, Goal, ratio

PUBLISHED = {
    "publish_one": {"holdfast": [90.0, 110.0, 100.0], "dramatiq": [80.0], "taskiq": [125.0, 125.0]},
}
LATE = {"latency_p99": {"holdfast": [3.0], "taskiq": [2.0], "limit": [1.0]}}


def test_a_goal_that_names_no_other_is_about_our_median() -> None:
    assert Goal("publish_one", 100.0, "").value(PUBLISHED) == 100.0
    assert Goal("publish_one", 100.0, "").verdict(PUBLISHED) == "ok"
    assert Goal("publish_one", 100.1, "").verdict(PUBLISHED) == "miss"
    assert Goal("publish_one", 99.9, "", most=True).verdict(PUBLISHED) == "miss"
    assert Goal("publish_one", 100.0, "", most=True).verdict(PUBLISHED) == "ok"


def test_beside_several_the_best_one_counts() -> None:
    assert Goal("publish_one", 0.8, "", ("dramatiq", "taskiq")).value(PUBLISHED) == 0.8
    assert Goal("publish_one", 1.0, "", ("dramatiq", "taskiq")).verdict(PUBLISHED) == "miss"
    assert Goal("publish_one", 1.0, "", ("dramatiq",)).verdict(PUBLISHED) == "ok"


def test_the_best_one_is_the_least_where_less_is_better() -> None:
    assert Goal("latency_p99", 2.0, "", ("taskiq", "limit"), most=True).value(LATE) == 3.0
    assert Goal("latency_p99", 1.5, "", ("taskiq",), most=True).verdict(LATE) == "ok"
    assert Goal("latency_p99", 1.2, "", ("taskiq",), most=True).verdict(LATE) == "miss"


def test_one_of_our_figures_beside_another() -> None:
    figures = {
        "consume_bulk_1": {"holdfast": [100.0], "limit": [9.0]},
        "consume_bulk_2": {"holdfast": [130.0]},
    }
    goal = Goal("consume_bulk_2", 1.3, "", over="consume_bulk_1")
    assert goal.value(figures) == 1.3
    assert goal.verdict(figures) == "ok"
    assert goal.verdict(figures | {"consume_bulk_1": {"holdfast": [101.0]}}) == "miss"


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    for goal in (
        Goal("sweep", 1.0, ""),
        Goal("publish_one", 1.0, "", ("before",)),
        Goal("publish_one", 1.0, "", over="sweep"),
        Goal("sweep", 1.0, "", over="publish_one"),
        Goal("sweep", 1.0, "", ("holdfast",)),
    ):
        assert goal.value(PUBLISHED) is None
        assert goal.verdict(PUBLISHED) == "not measured"


def test_those_that_took_no_part_are_left_out_of_a_ratio() -> None:
    assert ratio(PUBLISHED, "publish_one", ("before", "taskiq")) == 0.8
    assert ratio({"sweep": {"holdfast": [1.0], "before": [0.0]}}, "sweep", ["before"]) is None


def test_every_figure_of_a_goal_has_a_name() -> None:
    for goals in GOALS.values():
        for goal in goals:
            assert goal.figure in LABELS
            assert not goal.over or goal.over in LABELS
