"""libcuda through its child, against a compiled one that answers from a script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpucheck.machine import driver_reads
from gpucheck.machine.driver_reads import CudaReader, DriverReading
from gpucheck.report.facts import Device

Fake = Callable[..., Path]
UUIDS = [f"GPU-00000000-0000-0000-0000-{number:012d}" for number in range(3)]


def read(timeout_s: float = 30.0) -> DriverReading:
    with CudaReader(timeout_s) as reader:
        reader.ask()
        return reader.reading()


def seen(number: int, index: int) -> Device:
    return Device(
        kind="cuda",
        name="NVIDIA Fake 100",
        uuid=UUIDS[number],
        pci_address=f"0000:{0x10 + number:02x}:00.0",
        cuda_index=index,
        compute_capability="9.0",
        multiprocessors=132,
        memory_bus_width_bits=6144,
        integrated=False,
        memory_total_bytes=1000,
    )


def test_devices_stand_in_cudas_order_and_a_library_that_prints_does_no_harm(fake_driver: Fake) -> None:
    script = fake_driver("cuda.order=1,0\n")
    reading = read()
    assert (reading.code, reading.error, reading.version) == (0, None, "13.0")
    assert reading.path == str(script.parent / "libcuda.so.1")
    assert [row.device for row in reading.devices] == [seen(1, 0), seen(0, 1)]
    assert [row.unknown for row in reading.devices] == [{}, {}]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("name=Fake \x1b[2J 100", "name"),
        ("capability=4294967295", "compute_capability"),
        ("memory.total=18446744073709551615", "memory_total_bytes"),
    ],
)
def test_an_answer_that_makes_no_sense_is_none(fake_driver: Fake, line: str, field: str) -> None:
    fake_driver(f"cuda.order=0\n{line}\n")
    (row,) = read().devices
    assert getattr(row.device, field) is None and row.device.uuid == UUIDS[0]
    assert list(row.unknown) == [field] and row.unknown[field].startswith("libcuda's answer makes no sense: ")
    assert row.unknown[field].isprintable()


@pytest.mark.parametrize(
    ("mask", "numbers"),
    [("1", [0]), ("1,0", [0, 1]), (UUIDS[2], [2]), ("0,9,1", [1])],
)
def test_the_mask_is_libcudas_to_read(
    fake_driver: Fake, monkeypatch: pytest.MonkeyPatch, mask: str, numbers: list[int]
) -> None:
    fake_driver("cuda.order=1,0,2\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert [row.device for row in read().devices] == [seen(number, place) for place, number in enumerate(numbers)]


def test_a_mig_instance_is_known_by_its_two_uuids(fake_driver: Fake) -> None:
    fake_driver("cuda.order=0\n0.cuda.instance=MIG-00000000-0000-0000-0000-0000000000aa\n")
    (row,) = read().devices
    assert row.device.uuid == "MIG-00000000-0000-0000-0000-0000000000aa"
    assert row.device.parent_uuid == UUIDS[0]


def test_a_refused_field_costs_nothing_else(fake_driver: Fake) -> None:
    fake_driver("cuda.order=1,0\n1.cuda.uuid=!3\n0.cuda.get=!101\n")
    first, second = read().devices
    assert (first.device.uuid, first.device.multiprocessors) == (None, 132)
    assert first.unknown == {"uuid": "cuDeviceGetUuid_v2 answers 3 (CUDA_ERROR_FAKE: words of the fake)"}
    assert second.device == Device(kind="cuda", cuda_index=1)
    assert second.unknown == {"uuid": "cuDeviceGet answers 101 (CUDA_ERROR_FAKE: words of the fake)"}


@pytest.mark.parametrize(
    ("code", "words"),
    [(802, "CUDA_ERROR_FAKE: words of the fake"), (901, "unknown error")],
)
def test_a_start_that_fails_tells_its_code_and_words(fake_driver: Fake, code: int, words: str) -> None:
    fake_driver(f"cuda.init=!{code}\n")
    reading = read()
    assert (reading.code, reading.error, reading.version, reading.devices) == (code, words, "13.0", ())


@pytest.mark.slow
def test_a_start_that_hangs_is_bounded_and_the_path_known(fake_driver: Fake) -> None:
    script = fake_driver("cuda.init=hang\n")
    reading = read(timeout_s=2.0)
    assert (reading.code, reading.error) == (None, "libcuda did not answer within 2 s")
    assert reading.path == str(script.parent / "libcuda.so.1")


@pytest.mark.slow
def test_once_nvml_holds_the_cards_none_has_to_start(fake_driver: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cards may take their time to start, but not where NVML has answered for them already."""
    fake_driver("cuda.init=hang\n")
    monkeypatch.setattr(driver_reads, "ANSWER_S", 0.5)
    with CudaReader(600.0) as reader:
        reader.ask()
        assert reader.reading(are_gpus_up=True).error == "libcuda did not answer within 1 s"
    with CudaReader(1.5) as reader:
        reader.ask()
        assert reader.reading().error == "libcuda did not answer within 1.5 s"
