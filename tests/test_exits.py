from __future__ import annotations

from gpucheck import errors


def test_each_status_stands_once_and_has_a_place_in_the_order() -> None:
    codes = [row.code for row in errors.EXITS]
    assert codes == [0, 1, 2, 3, 4, 70, 130, 141, 143]
    assert sorted(errors.EXIT_PRIORITY) == sorted(codes)


def test_the_error_says_what_why_and_what_to_do() -> None:
    assert str(errors.CannotLook("no GPU", "the driver is not loaded", "load it")) == (
        "no GPU; the driver is not loaded; load it"
    )
    assert str(errors.UsageError("bad size")) == "bad size"


def test_the_exit_status_of_each_error() -> None:
    assert errors.UsageError("").exit_code == errors.TargetError("").exit_code == 2
    assert errors.CannotLook("").exit_code == 3
    assert errors.DeviceFailed("").exit_code == 1
    assert errors.Undecided("").exit_code == 4
