"""The crash rig: clients whose calls are recorded, faults, and a judge that trusts nobody's word alone."""
