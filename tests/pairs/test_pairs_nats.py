"""Every pair of verbs at once, on one store."""

from checks import all_of, some

test_verbs_at_once_leave_every_invariant_true = some("nats")
test_every_pair_on_every_kind_of_consumer = all_of("nats")
