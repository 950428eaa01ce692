"""`python -m gpucheck` is the command `gpucheck`."""

import os
import sys

# `-m` puts the current folder first on the path: a stray json.py or torch.py there must not break the command. Targets
# find the current folder all the same: the children that load them put it there.
_ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if sys.path and os.path.abspath(sys.path[0] or ".") == os.getcwd() != _ours:
    del sys.path[0]

try:
    from gpucheck.cli.app import main
except KeyboardInterrupt:  # while it still starts
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
