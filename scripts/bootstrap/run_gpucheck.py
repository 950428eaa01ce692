"""What scripts/gpucheck starts in the prepared environment: the command, as its console script would."""

import os
import sys

if __name__ == "__main__":  # a worker process that is spawned reads this file again
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != here]  # these modules are no part of gpucheck

    from gpucheck.__main__ import main

    sys.exit(main())
