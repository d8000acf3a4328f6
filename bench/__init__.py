"""Benchmarks: Holdfast beside its peers and a hand-written limit, in one run on one server."""
