"""The pure core: events, jobs, policies and decisions. Standard library only."""
