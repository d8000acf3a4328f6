"""What every process of the rig has imported before it is forked."""

import holdfast.backends.nats.backend
import holdfast.backends.postgres.backend
import holdfast.backends.redis.backend
import holdfast.chaos.parties.clerk
import holdfast.chaos.parties.consumer
import holdfast.chaos.parties.follower
import holdfast.chaos.parties.heartbeat
import holdfast.chaos.parties.live_operator
import holdfast.chaos.parties.newcomer
import holdfast.chaos.parties.operator
import holdfast.chaos.parties.poller
import holdfast.chaos.parties.producer
import holdfast.chaos.parties.publisher
import holdfast.chaos.parties.sweeper
import holdfast.chaos.parties.undertaker
import holdfast.chaos.parties.upkeep
import holdfast.chaos.parties.worker  # noqa: F401 - to have them imported
