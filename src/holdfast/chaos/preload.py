"""What every process of the rig has imported before it is forked."""

import holdfast.backends.nats.backend
import holdfast.backends.postgres.backend
import holdfast.backends.redis.backend
import holdfast.chaos.parties.follower
import holdfast.chaos.parties.publisher
import holdfast.chaos.parties.sweeper
import holdfast.chaos.parties.tasker
import holdfast.chaos.parties.undertaker
import holdfast.chaos.parties.upkeep
import holdfast.chaos.parties.worker  # noqa: F401
