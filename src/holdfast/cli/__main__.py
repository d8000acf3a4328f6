"""`python -m holdfast.cli`: the same as `holdfast`."""

from holdfast.cli.program import main

main()
