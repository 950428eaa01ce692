"""What torch leaves on the disk by itself, taken away again."""

from __future__ import annotations

import contextlib
import os

# Where torch keeps what it compiled; it sets this itself when it makes the folder.
CACHE = "TORCHINDUCTOR_CACHE_DIR"
GIVEN = os.environ.get(CACHE)


def remove_empty_cache() -> None:
    """Remove the folder that torch makes in the temporary one with the first optimizer (2.13), unless it is in use.

    One that the user named stays; one that holds something cannot be removed; compiling makes it anew.
    """
    made = os.environ.get(CACHE)
    if made is not None and made != GIVEN:
        with contextlib.suppress(OSError):
            os.rmdir(made)
