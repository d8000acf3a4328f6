"""Deterministic simulation: our own decisions, under a virtual clock, in every order that chance finds.

    outcome = simulate(range(1000))
    assert outcome.found is None, outcome.found

A seed decides everything: who acts, who crashes, when time passes, what is lost on the way. `trace` tells the
whole expected of one seed.
"""

from holdfast_chaos.simulation.catalog import WORLDS, Defect, defects
from holdfast_chaos.simulation.runs import Found, SeedsOutcome, simulate, trace

__all__ = ["WORLDS", "Defect", "Found", "SeedsOutcome", "defects", "simulate", "trace"]
