"""Named texts as one file: .zip or .tar.gz. What tells who packed it (owner, machine, folder) is not in it."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from datetime import datetime


def zipped(texts: Mapping[str, str], when: datetime) -> bytes:
    """The texts as a zip file, all of them from the time `when`."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            entry = zipfile.ZipInfo(name, when.timetuple()[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, _encoded(text))
    return held.getvalue()


def tarred(texts: Mapping[str, str], when: datetime) -> bytes:
    """The texts as a tar file packed by gzip, all of them from the time `when`."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, text in texts.items():
            data = _encoded(text)
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), int(when.timestamp()), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(held.getvalue(), mtime=int(when.timestamp()))


SUFFIXES: dict[str, Callable[[Mapping[str, str], datetime], bytes]] = {".zip": zipped, ".tar.gz": tarred}


def _encoded(text: str) -> bytes:
    # A path that is no text in UTF-8 comes as halves of characters; in JSON this is their escape.
    return text.encode("utf-8", "backslashreplace")
