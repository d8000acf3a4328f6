"""Deterministic simulation: our own decisions, under a virtual clock, in every order that chance finds.

    outcome = simulate(range(1000))
    assert outcome.found is None, outcome.found

A seed decides everything: who acts, who crashes, when time passes, what is lost on the way. `trace` tells the
whole story of one seed.
"""

from holdfast.chaos.simulation.catalog import WORLDS, Defect, defects
from holdfast.chaos.simulation.runs import Found, Outcome, simulate, trace

__all__ = ["WORLDS", "Defect", "Found", "Outcome", "defects", "simulate", "trace"]
