"""`python -m gpucheck` is the command `gpucheck`."""

import sys

from gpucheck.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
