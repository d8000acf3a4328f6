"""Upkeep: what finds stuck, due and expired work."""
