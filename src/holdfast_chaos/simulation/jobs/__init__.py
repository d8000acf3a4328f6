"""The world of jobs: publishers, workers, the lifecycle and an operator around one store."""
