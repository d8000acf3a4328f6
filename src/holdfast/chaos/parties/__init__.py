"""The parties: what the processes of the rig do. Each module has a `main` that takes its specification."""
