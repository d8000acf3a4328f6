"""`python -m holdfast.cli`: the same as `holdfast`; so `holdfast up` starts its Spark drivers."""

from holdfast.bus.shutdown import end_with_parent
from holdfast.cli.program import main

end_with_parent()
main()
