"""`holdfast chaos`: the crash rig, and whether it can be believed."""
