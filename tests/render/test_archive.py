from __future__ import annotations

import io
import tarfile
import zipfile
from datetime import datetime, timezone

import pytest

from gpucheck.render import archive

WHEN = datetime(2026, 1, 31, 12, 0, 2, tzinfo=timezone.utc)
# The second is half of a character, as a path that is no UTF-8 comes.
TEXTS = {"README.txt": "über\n", "a.json": '"\udce4"\n'}


def test_a_zip_file() -> None:
    with zipfile.ZipFile(io.BytesIO(archive.zipped(TEXTS, WHEN))) as made:
        assert made.testzip() is None
        assert {name: made.read(name) for name in made.namelist()} == {
            "README.txt": "über\n".encode(),
            "a.json": b'"\\udce4"\n',
        }
        assert {(one.date_time, one.external_attr >> 16) for one in made.infolist()} == {
            ((2026, 1, 31, 12, 0, 2), 0o600)
        }


def test_a_tar_file() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive.tarred(TEXTS, WHEN))) as made:
        held = {one.name: made.extractfile(one) for one in made.getmembers()}
        assert {name: file.read() for name, file in held.items() if file is not None} == {
            "README.txt": "über\n".encode(),
            "a.json": b'"\\udce4"\n',
        }
        assert {(one.mtime, one.mode, one.uid, one.uname) for one in made.getmembers()} == {
            (int(WHEN.timestamp()), 0o600, 0, "")
        }


@pytest.mark.parametrize("suffix", archive.SUFFIXES)
def test_the_same_texts_make_the_same_file(suffix: str) -> None:
    pack = archive.SUFFIXES[suffix]
    assert pack(TEXTS, WHEN) == pack(TEXTS, WHEN)
