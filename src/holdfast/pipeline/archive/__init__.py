"""The archiver: a stream consumer whose sink is cold storage.

Executors write objects, put-if-absent under names made of positions. The driver then commits: a manifest, an
announcement, the cursor. The manifests of a channel are a chain: each is named by the cursor that it starts
from, so that of two drivers one can commit, and whoever comes later follows the one that did.
"""
