"""Of several texts in one paste the root cause comes first."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.doctor.condition import Condition
from gpucheck.explain import match as matching
from gpucheck.explain.command import OF_CONDITIONS, TEXTS
from gpucheck.explain.match import Normal, Pattern, find


def ids(pasted: str) -> list[str]:
    return [match.text.id for match in find(pasted, TEXTS, OF_CONDITIONS)]


def text(name: str, *patterns: str, **more: Any) -> Condition:
    return Condition(name, name, "It happened.", "do it", patterns, **more)


FRAME = """Traceback (most recent call last):
  File "/work/train.py", line 88, in step
    raise RuntimeError("CUDA out of memory")  # as torch says it
  File "/work/model.py", line 12, in forward
    return self.head(x)
{error}
"""


def test_a_line_of_a_log_is_a_guess_beside_an_error_that_is_not_known() -> None:
    said = "NCCL WARN Call to ibv_modify_qp failed\nTraceback (most recent call last):\nAssertionError: nhead=8 unfit\n"
    (match,) = find(said, TEXTS)
    assert (match.text.id, match.certainty) == ("nccl.infiniband", "hint")


@pytest.mark.parametrize(
    "listing",
    [
        "sgl_kernel: 0.0.8.post3\nflashinfer: Module Not Found\nzmq: N/A",
        "sgl_kernel==0.1.0 on an H100\nflashinfer: Module Not Found",
        "// Re-select an algorithm after a cublasLtMatmul failure.\nstatic void f() {",
    ],
)
def test_a_listing_of_versions_and_a_comment_report_no_error(listing: str) -> None:
    assert ids(f"CUDA available: True\n{listing}") == []


def test_the_exception_at_the_end_comes_before_the_source_in_its_frames() -> None:
    said = FRAME.format(error="RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half")
    assert ids(said) == ["tensor.dtype", "oom.cuda"]


def test_of_two_tracebacks_the_last_ended_the_program() -> None:
    first = FRAME.format(error="RuntimeError: CUDA error: invalid argument")
    last = FRAME.format(error="AssertionError: Torch not compiled with CUDA enabled")
    assert ids(first + "retrying\n" + last)[:2] == ["torch.cpu_only", "cuda.argument"]


def test_of_chained_exceptions_the_first_is_the_cause() -> None:
    first = FRAME.format(error="ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory")
    between = "\nThe above exception was the direct cause of the following exception:\n\n"
    last = FRAME.format(error="RuntimeError: operator torchvision::nms does not exist")
    assert ids(first + between + last)[:2] == ["import.library", "import.nms"]


def test_an_assertion_of_a_kernel_comes_before_the_exception_that_it_led_to() -> None:
    said = (
        "../aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: "
        "[5,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        + FRAME.format(error="torch.AcceleratorError: CUDA error: device-side assert triggered")
    )
    assert ids(said)[:2] == ["assert.label", "cuda.device_assert"]


def test_what_other_ranks_say_comes_after_the_rank_that_failed() -> None:
    said = """[rank1]:[E1121 12:00:09.1 ProcessGroupNCCL.cpp:1785] ncclRemoteError: A call failed possibly
[rank3]: Traceback (most recent call last):
[rank3]:   File "/work/train.py", line 88, in step
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB
[rank0]:[E1121 12:10:09.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
    found = find(said, TEXTS, OF_CONDITIONS)
    assert [match.text.id for match in found] == ["oom.cuda", "dist.child", "nccl.remote", "nccl.timeout"]
    assert [match.line for match in found] == [5, 7, 1, 6]


def test_a_longer_text_covers_the_general_one_within_it() -> None:
    general, special = text("a.general", "out of memory"), text("a.special", "gpu out of memory on device")
    assert [match.text.id for match in find("GPU out of memory on device 3", [general, special])] == ["a.special"]
    assert [match.text.id for match in find("host out of memory", [general, special])] == ["a.general"]


def test_a_symptom_covers_nothing_and_says_nothing_on_a_line_with_its_cause() -> None:
    cause, symptom = text("a.cause", "no room"), text("a.symptom", "it failed: no room left", symptom=True)
    assert [match.text.id for match in find("it failed: no room left", [cause, symptom])] == ["a.cause"]
    assert [m.text.id for m in find("it failed: no room left\n\nno room", [symptom])] == ["a.symptom"]


def test_a_condition_in_the_same_place_is_what_the_text_points_to() -> None:
    mine, condition = text("a.text", "no GPU here"), text("b.condition", "no GPU")
    (match,) = find("there is no GPU here", [mine], [condition])
    assert (match.text.id, match.conditions) == ("a.text", ("b.condition",))
    (match,) = find("there is no GPU there", [mine], [condition])
    assert match.text.id == "b.condition"


@pytest.mark.slow
def test_a_text_is_told_once_however_often_it_is_there() -> None:
    (match,) = find("CUDA out of memory\n" * 5000, TEXTS)
    assert (match.text.id, match.line) == ("oom.cuda", 1)


def test_nothing_is_found_in_nothing() -> None:
    assert find("", TEXTS, OF_CONDITIONS) == []
    assert find("\x00\x1b[31m\n\n\r\n", TEXTS, OF_CONDITIONS) == []


@pytest.mark.slow
def test_what_is_searched_does_not_grow_with_the_errors_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pattern goes over the text once, also where 130 rows share it, and of its places a fixed number is looked
    at: however many lines of errors there are, the work for each stays the same."""
    searched: list[str] = []
    placed: list[int] = []
    spans, offset = matching._spans, Normal.solid_offset

    def counted_spans(normal: Normal, row: Pattern) -> dict[str, list[tuple[int, int]]]:
        searched.append(row.regex.pattern)
        return spans(normal, row)

    def counted_offset(normal: Normal, at: int) -> int:
        placed.append(at)
        return offset(normal, at)

    monkeypatch.setattr(matching, "_spans", counted_spans)
    monkeypatch.setattr(Normal, "solid_offset", counted_offset)
    work = []
    tried = []
    for lines in (3_000, 6_000):
        searched.clear()
        placed.clear()
        find("NVRM: Xid (PCI:0000:10:00): 31, pid=7, name=python\n" * lines, TEXTS)
        assert len(searched) == len(set(searched)) > 50  # those whose words are there
        tried.append(set(searched))
        work.append(len(placed))
    assert tried[0] == tried[1]
    # Two ends of the places of xid.31 and of xid.unknown.
    assert work == [2 * 2 * matching._MOST_PLACES] * 2


@pytest.mark.slow
def test_of_many_numbers_in_a_log_each_is_told() -> None:
    log = "\n".join(f"NVRM: Xid (PCI:0000:10:00): {number}, pid=7" for number in (31, 43, 79, 94) * 500)
    assert [(match.text.id, match.line) for match in find(log, TEXTS)] == [
        ("xid.31", 1), ("xid.79", 3), ("xid.94", 4), ("xid.43", 2)
    ]  # fmt: skip


# --- whose it is ------------------------------------------------------------------------------------------------------


def test_what_any_program_prints_counts_beside_what_is_ours() -> None:
    common = text("a.common", common=("too many open files",))
    assert find("nginx: too many open files", [common]) == []
    assert [match.text.id for match in find("import torch\ntoo many open files", [common])] == ["a.common"]


def test_some_of_it_counts_beside_other_words_alone() -> None:
    common = text("a.common", common=("too many open files",), beside=r"\bworker\b")
    assert find("import torch\ntoo many open files", [common]) == []
    assert find("workers\ntoo many open files", [common]) == []
    assert [match.text.id for match in find("worker 3\ntoo many open files", [common])] == ["a.common"]


def test_what_makes_it_somebody_elses() -> None:
    known = text("a.text", "killed process", unless=r"\bmysqld\b")
    assert [match.text.id for match in find("killed process python", [known])] == ["a.text"]
    assert find("killed process 3 (mysqld)", [known]) == []


def test_a_condition_alone_has_to_be_ours_too() -> None:
    condition = text("b.condition", "key was rejected")
    assert find("modprobe vboxdrv: key was rejected", [], [condition]) == []
    assert [row.text.id for row in find("modprobe nvidia: key was rejected", [], [condition])] == ["b.condition"]


@pytest.mark.parametrize(
    "quiet",
    [
        "node1:1:1 [0] NCCL INFO NET/Plugin: it broke here",
        "INFO 10-15 08:32:29 [loader.py:70] it broke here",
        "2026-01-31 12:00:00,123 - DEBUG - it broke here",
        "I0131 12:00:00.000000 411 client.cpp:12] it broke here",
        "-- it broke here",
        "$ grep 'it broke here' train.log",
        "user@host:~/work$ echo it broke here",
        ">>> print('it broke here')",
    ],
)
def test_what_is_no_error_is_not_searched(quiet: str) -> None:
    known = text("a.text", "it broke here")
    assert find(f"cuda\n{quiet}", [known]) == []
    assert [match.text.id for match in find("ERROR 10-15 08:32:29 [loader.py:70] it broke here", [known])] == ["a.text"]


# --- what comes first -------------------------------------------------------------------------------------------------


def test_what_follows_from_another_comes_after_it_and_does_not_cover_it() -> None:
    cause, after = text("a.cause", "no room"), text("b.after", "it failed: no room left", follows=("a.",))
    for pasted in ("it failed: no room left", "no room\nit failed: no room left", "it failed: no room left\nno room"):
        assert next(match.text.id for match in find(pasted, [after, cause])) == "a.cause", pasted
    assert [match.text.id for match in find("no room", [after, cause])] == ["a.cause"]


# --- how sure it is ---------------------------------------------------------------------------------------------------


def test_a_symptom_is_a_hint() -> None:
    (match,) = find("it failed", [text("a.symptom", "it failed", symptom=True, certainty="proof")])
    assert (match.certainty, match.doubt) == ("hint", "")


def test_beside_an_error_that_is_not_known_it_is_a_guess() -> None:
    known = text("a.text", "no room", certainty="proof")
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n'
    (match,) = find(f"there is no room\n{traceback}KeyError: 'loss'", [known])
    assert (match.certainty, match.doubt) == ("hint", "the paste has an error that is not known, `KeyError: 'loss'`")
    (match,) = find(f"{traceback}ValueError: there is no room", [known])
    assert (match.certainty, match.doubt) == ("proof", "")
    (match,) = find(f"{traceback}ValueError: it happened:\nthere is no room", [known])
    assert match.certainty == "proof", "a message goes on below its first line"


def test_beside_another_cause_it_is_a_guess() -> None:
    answer, other = text("a.one", "no room", certainty="proof"), text("b.other", "no air", certainty="proof")
    first, second = find("no room\nno air", [answer, other])
    assert (first.text.id, first.certainty) == ("a.one", "hint")
    assert first.doubt == "the paste has other causes too"
    assert second.certainty == "proof"


def test_what_the_program_goes_on_without_is_no_cause_of_an_error() -> None:
    known = text("a.text", "no kernel here", certainty="proof")
    warning = "UserWarning: no kernel here, falling back to CPU"
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n'
    (match,) = find(warning, [known])
    assert (match.certainty, match.doubt) == ("hint", "the program says it goes on after it")
    assert find(f"{warning}\n{traceback}KeyError: 'loss'", [known]) == []


def test_a_line_of_source_is_no_error_where_the_error_is_another() -> None:
    pasted = FRAME.format(error="KeyError: 'loss'")
    assert ids(pasted) == []
    (match,) = find(pasted.rsplit("KeyError", 1)[0], TEXTS)
    assert (match.certainty, match.doubt) == ("hint", "it is in a line of source code")


def test_an_error_of_what_was_typed_is_no_line_of_source() -> None:
    """Python shows no source below a frame of `-c`, of standard input or of a file that is gone."""
    typed = 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
    (match,) = find(f"{typed}RuntimeError: CUDA error: no kernel image is available for execution on the device", TEXTS)
    assert (match.text.id, match.certainty, match.doubt) == ("cuda.no_kernel", "strong", "")
    late = "[rank0]:[E1120 10:10:00.1 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout: "
    assert ids(f"{typed}AssertionError: loss is NaN\n{late}WorkNCCL(SeqNum=5)")[0] == "numerics.nan"


def test_a_line_of_a_log_below_an_error_is_no_part_of_its_message() -> None:
    known = text("a.text", "no room", certainty="proof")
    error = FRAME.format(error="KeyError: 'loss'")
    (match,) = find(f"{error}2026-11-20 10:00:00 WARNING pool: no room", [known])
    assert (match.certainty, match.doubt) == ("hint", "the paste has an error that is not known, `KeyError: 'loss'`")
    (match,) = find(f"ERROR ValueError: it happened:\nERROR no room\n{error}", [known])
    assert match.doubt.startswith("the paste has an error that is not known"), "of a later traceback"
    (match,) = find("E1120 10:00:00.123 7 a.py:3] ValueError: so\nE1120 10:00:01.456 7 a.py:3] no room", [known])
    assert (match.certainty, match.doubt) == ("proof", ""), "each line of a message with its own time"


def test_an_error_after_which_the_program_went_on_to_another_is_a_guess() -> None:
    known = text("a.text", "no room", certainty="proof")
    first = FRAME.format(error="ValueError: no room")
    (match,) = find(first + "retrying\n" + FRAME.format(error="KeyError: 'loss'"), [known])
    assert (match.certainty, match.doubt) == ("hint", "the paste has an error that is not known, `KeyError: 'loss'`")
    for passed_on in (
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ):
        (match,) = find(first + FRAME.format(error=passed_on), [known])
        assert (match.certainty, match.doubt) == ("proof", "")
    (match,) = find(
        first + "Exception ignored in: <function Pool.__del__>\n" + FRAME.format(error="OSError: x"), [known]
    )
    assert (match.certainty, match.doubt) == ("proof", "")


def test_of_two_ranks_with_a_cause_each_nobody_knows_which_was_first() -> None:
    message = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    other = "[rank0]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    traceback = "[{}]: Traceback (most recent call last):\n"
    first, second = find(traceback.format("rank1") + message + traceback.format("rank0") + other, TEXTS)
    assert {first.text.id, second.text.id} == {"oom.cuda", "cuda.illegal_access"}
    assert (first.certainty, first.doubt) == ("hint", "the paste has other causes too")
    (alone,) = find(message + message.replace("rank1", "rank2"), TEXTS)
    assert alone.certainty == "proof", "the same of both"


def test_what_is_tried_again_is_a_guess() -> None:
    (match,) = find("WARNING attempt 2 failed: CUDA error: out of memory, retrying in 4s\nattempt 3 succeeded", TEXTS)
    assert (match.text.id, match.certainty) == ("oom.cuda", "hint")
    assert match.doubt == "the program says it goes on after it"


@pytest.mark.parametrize(
    ("pasted", "first"),
    [
        # An update without a reboot: CUDA answers 803 or, on cards that know no forward compatibility, 804.
        ("Failed to initialize NVML: Driver/library version mismatch\nRuntimeError: Error 804: forward compatibility "
         "was attempted on non supported HW", "nvml.mismatch"),
        ("Failed to initialize NVML: Driver/library version mismatch\nRuntimeError: Error 803: system has unsupported "
         "display driver / cuda driver combination", "nvml.mismatch"),
        ("Failed to initialize NVML: Unknown Error\nRuntimeError: No CUDA GPUs are available", "nvml.unknown"),
    ],
)  # fmt: skip
def test_what_brings_it_about_comes_first_and_without_a_doubt(pasted: str, first: str) -> None:
    found = find(pasted, TEXTS, OF_CONDITIONS)
    assert (found[0].text.id, found[0].doubt) == (first, "")


def test_words_that_only_look_like_an_error() -> None:
    assert ids(FRAME.format(error="ValueError: so").replace("self.head(x)", "head.to('cuda')")) == []
    assert ids("GPU 0: CUDA error: uncorrectable ECC error encountered") == ["cuda.ecc"], "no AER in cudaerror"


def test_the_lines_around_are_given_for_who_reads_their_numbers() -> None:
    lines = [f"line {number}" for number in range(1, 31)]
    lines[9] = "no room"
    (match,) = find("\n".join(lines), [text("a.text", "no room")])
    assert match.excerpt.split("line ")[0].strip() == "no room" and match.excerpt.endswith("line 22")
    assert match.context.startswith("line 7 line 8") and match.context.endswith("line 22")


# --- what comes first -------------------------------------------------------------------------------------------------


def test_a_proof_comes_before_what_is_nearly_certain_and_that_before_a_hint() -> None:
    texts = [
        text("a.hint", "it burns", certainty="hint"),
        text("a.strong", "it is hot"),
        text("a.proof", "it is on fire", certainty="proof"),
    ]
    said = "torch: it burns\ntorch: it is hot\ntorch: it is on fire"
    assert [row.text.id for row in find(said, texts)] == ["a.proof", "a.strong", "a.hint"]
    one_line = "torch: it burns, it is hot, it is on fire"
    assert [row.text.id for row in find(one_line, texts)] == ["a.proof", "a.strong", "a.hint"]
    assert [row.text.id for row in find("it is hot\nRuntimeError: it burns", texts)] == ["a.strong", "a.hint"]


@pytest.mark.parametrize("library", ["cudnn_ops64_9.dll", "caffe2_detectron_ops_gpu.dll", "shm.dll", "torch_cuda.dll"])
def test_a_paging_file_that_is_too_small_comes_before_the_dll_that_did_not_load(library: str) -> None:
    said = (
        "OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading "
        f'"C:\\Users\\me\\torch\\lib\\{library}" or one of its dependencies.'
    )
    assert ids(said)[0] == "oom.host"


def test_cudnns_dll_that_is_not_found_is_a_library_of_cudas() -> None:
    assert ids("Could not locate cudnn_ops64_9.dll. Please make sure it is in your library path!") == ["import.library"]


# As drivers of 2026 write it, in this order (open-gpu-kernel-modules issue 1080).
_HEARTBEAT = """NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 3224 diff 8042 timeout 5200
NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out
NVRM: Xid (PCI:0000:01:00): 8, pid=4312, name=python, channel 0x00000010
NVRM: Xid (PCI:0000:01:00): 109, pid=4312, name=python, CTX SWITCH TIMEOUT
NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!"""


def test_of_the_kernels_log_what_was_written_first_is_the_cause() -> None:
    assert ids(_HEARTBEAT)[0] == "kernel.watchdog"
    # Behind an Xid the same row is its effect.
    assert ids(_HEARTBEAT[_HEARTBEAT.index("NVRM: Xid (PCI:0000:01:00): 8") :])[0] == "xid.8"


def test_the_drivers_own_word_for_a_timeout_of_the_gsp_is_its_xid() -> None:
    said = "NVRM: nvAssertFailedNoLog: Assertion failed: Back to back GSP RPC timeout detected! GPU marked for reset\n"
    assert ids(said) == ["xid.119"]
    assert ids(said + "NVRM: Xid (PCI:0000:0b:00): 154, GPU recovery action changed to 0x1 (GPU Reset Required)")[
        0
    ] == ("xid.119")


def test_what_is_deprecated_comes_after_what_failed() -> None:
    said = (
        "FutureWarning: The pynvml package is deprecated. Please install nvidia-ml-py instead.\n"
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"
    )
    assert ids(said) == ["cudnn.failed", "nvml.pynvml"]


def test_what_says_little_is_a_hint_where_nothing_else_is_found_in_a_paste_that_is_ours() -> None:
    weak, whole = text("a.weak", weak=("engine broke",)), text("a.whole", "no more fuel")
    (match,) = find("torch: the engine broke", [weak, whole])
    assert (match.text.id, match.certainty) == ("a.weak", "hint")
    assert [row.text.id for row in find("torch: the engine broke\nno more fuel", [weak, whole])] == ["a.whole"]
    assert find("the engine broke", [weak, whole]) == []


@pytest.mark.parametrize(
    ("pasted", "name"),
    [
        (
            "_pickle.UnpicklingError: Weights only load failed. Please file an issue with the following so that we can "
            "make `weights_only=True` compatible: WeightsUnpickler error: CUDA error: out of memory",
            "oom.cuda",
        ),
        (
            "_pickle.UnpicklingError: Weights only load failed.\n\tWeightsUnpickler error: Unsupported global: GLOBAL "
            "numpy.dtype was not an allowed global by default.",
            "checkpoint.weights_only",
        ),
        (
            "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: "
            "FlashAttention2 is not available on CPU. Please make sure torch can access a CUDA device.",
            "torch.no_accelerator",
        ),
        (
            "Error running sage attention: CUDA error: no kernel image is available for execution on the device, "
            "using pytorch attention instead.",
            "cuda.no_kernel",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error, NCCL "
            "version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 500 "
            "'named symbol not found'",
            "cuda.invalid_image",
        ),
    ],
)
def test_what_a_message_gives_as_its_reason_is_the_answer(pasted: str, name: str) -> None:
    assert find(pasted, TEXTS, OF_CONDITIONS)[0].text.id == name


def test_a_message_whose_reason_is_not_known_is_a_hint() -> None:
    (match,) = find("Weights only load failed: the moon is full", TEXTS)
    assert (match.text.id, match.certainty) == ("checkpoint.weights_only", "hint")
    wrap, reason = text("a.wrap", "the ship broke"), text("a.reason", "no more fuel")
    assert [row.text.id for row in find("the ship broke because no more fuel", [wrap, reason])] == ["a.reason"]
    assert find("the ship broke. no more fuel", [wrap, reason])[0].text.id == "a.wrap"


@pytest.mark.parametrize(
    "sentence",
    [
        "Training is slow. No out of memory as far as I can see.",
        "It ran for two days without any CUDA out of memory.",
        "This is not a CUDA out of memory, I think",
        "If you get a CUDA out of memory, reduce the batch size.",
        "Gradient checkpointing helps to avoid CUDA out of memory.",
        "A larger batch may lead to CUDA out of memory.",
        "Could this be CUDA out of memory?",
        "I have checked that it's not an issue with CUDA out of memory.",
        "CUDA out of memory never happens, but it is slow.",
        "CUDA out of memory is not the problem here.",
        'The docs say "CUDA out of memory" has its own page.',
    ],
)
def test_an_error_that_a_sentence_only_names_is_no_evidence(sentence: str) -> None:
    assert find(f"PyTorch version: 2.5.1+cu124\n{sentence}", TEXTS, OF_CONDITIONS) == []


@pytest.mark.parametrize(
    "said",
    [
        "I get CUDA out of memory, is this normal?",
        "It does not work any more since the update: CUDA out of memory.",
        "If I use two GPUs it says CUDA out of memory",
        "RuntimeError: no luck. CUDA out of memory",
    ],
)
def test_an_error_that_a_sentence_reports_is(said: str) -> None:
    assert find(said, TEXTS, OF_CONDITIONS)[0].text.id == "oom.cuda"


def test_a_sentence_of_somebodys_is_a_hint_and_comes_after_what_a_program_printed() -> None:
    answer = find("I get CUDA out of memory on my GPU", TEXTS, OF_CONDITIONS)
    assert [(match.text.id, match.certainty) for match in answer] == [("oom.cuda", "hint")]
    answer = find(
        "My other run had CUDA out of memory\nRuntimeError: operator torchvision::nms does not exist",
        TEXTS,
        OF_CONDITIONS,
    )
    assert answer[0].text.id == "import.nms"


def test_the_lines_of_one_event_do_not_doubt_each_other() -> None:
    line = "[ 1.112233] NVRM: Xid (PCI:0000:{}:00): {}, pid=2211, name=python, x\n"
    message = "".join(line.format("9c", number) for number in (48, 63, 94, 154))
    (first, *_) = find(message, TEXTS, OF_CONDITIONS)
    assert (first.text.id, first.certainty) == ("xid.48", "proof")
    (first, *_) = find(line.format("9c", 79) + "RuntimeError: CUDA error: unknown error", TEXTS, OF_CONDITIONS)
    assert (first.text.id, first.certainty) == ("xid.79", "proof")
    (first, *_) = find(line.format("9c", 48) + line.format("1a", 79), TEXTS, OF_CONDITIONS)
    assert first.doubt == "the paste has other causes too"


ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered\n"


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        (  # a package that a report of the environment does not find
            "Python: 3.12.3\nPyTorch: 2.6.0+cu124\nsglang: 0.4.4\nsgl_kernel: Module Not Found\ntriton: 3.2.0\n"
            + ILLEGAL,
            ["cuda.illegal_access"],
        ),
        (  # guesses of a program at a cause
            "RuntimeError: NCCL communicator was aborted on rank 1.\nPossible reasons:\n  - CUDA out of memory on "
            "another rank\n\n  - the NVIDIA driver on your system is too old (found version 11040)\n",
            ["nccl.remote"],
        ),
        (  # a change to source
            'diff --git a/x.py b/x.py\n@@ -1,3 +1,4 @@\n-    raise RuntimeError("CUDA out of memory")\n+    raise '
            'RuntimeError(f"no kernel image is available for {x}")\n\nAssertionError: Torch not compiled with CUDA '
            "enabled",
            ["torch.cpu_only"],
        ),
        (  # lines of source without a frame
            'RuntimeError(f"no kernel image is available for {x}")\nassert torch.cuda.is_available(), "No CUDA GPUs '
            'are available"\n' + ILLEGAL,
            ["cuda.illegal_access", "cuda.no_kernel", "cuinit.100"],
        ),
        (  # information of a program that goes on
            "WARNING 01-01 10:00:00 [custom_all_reduce.py:85] Custom allreduce is disabled because this process group "
            "spans across nodes.\nncclSystemError: System call (e.g. socket, malloc) or external library call failed.",
            ["nccl.unhandled_system", "cuda.peer"],
        ),
        (  # a version that a program accepts
            "[WARNING] Installed CUDA version 12.4 does not match the version torch was compiled with 12.1 but since "
            "the APIs are compatible, accepting this combination\nx.cu:3:10: fatal error: cusparse.h: No such file",
            ["nvcc.missing", "nvcc.mismatch"],
        ),
        (  # the failure of what collects a report
            'Collecting environment information...\nTraceback (most recent call last):\n  File "/w/collect_env.py", '
            "line 813, in main\n    output = info()\npynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found\n"
            '\nTraceback (most recent call last):\n  File "/w/serve.py", line 8, in main\n    go()\n' + ILLEGAL,
            ["cuda.illegal_access"],
        ),
    ],
)
def test_what_reports_no_error_comes_last_and_proves_nothing(pasted: str, expected: list[str]) -> None:
    found = find(pasted, TEXTS, OF_CONDITIONS)
    assert [match.text.id for match in found] == expected
    assert {match.certainty for match in found[1:]} <= {"hint"}


def test_a_collectors_failure_that_stands_alone_is_the_error() -> None:
    alone = 'Traceback (most recent call last):\n  File "/w/collect_env.py", line 8, in main\n    output = info()\n'
    alone += "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found\n"
    assert ids(alone) == ["nvml.no_library"]
    assert ids(alone + "PyTorch: 2.6.0\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB") == ["oom.cuda"]


@pytest.mark.parametrize(
    "pasted",
    [
        "There is no sign of out of memory in the log of the torch job.",
        "We could rule out CUDA out of memory, nvidia-smi shows 20 GB free.",
        "Solved: it was the cuda out of memory thing, a smaller batch works now.",
        "This PR adds a retry when we see CUDA out of memory. nit: could you rename it?",
    ],
)
def test_an_error_that_is_excluded_or_in_the_past_is_none(pasted: str) -> None:
    assert ids(pasted) == []
    assert ids(pasted + "\n" + ILLEGAL)[0] == "cuda.illegal_access"


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ("misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\nNCCL is ready", []),
        ('docs: a section\nReaders who see "no kernel image is available for execution" update torch.', []),
        ("The training of the 7B model never runs out of memory on one A100", []),
        ("W cuda: failed to allocate buffer, size = 20.00 MiB; this is not a failure", []),
        ('[WinError 1455] The paging file is too small. Error loading "C:\\x\\torch\\lib\\c10.dll"', ["oom.host"]),
        ("We had CUDA out of memory before.\nDriver/library version mismatch", ["nvml.mismatch", "oom.cuda"]),
    ],
)
def test_what_is_harmless_quoted_or_of_the_same_event_is_no_cause(said: str, first: list[str]) -> None:
    assert ids(said) == first


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Tell readers what the line `CUDA error: no kernel image is available` means.", "cuda.no_kernel"),
        ("Warning: Unable to resolve hostname. Using the loopback address as fallback. GLOO", "nccl.interface"),
        ("level_zero: ZE_RESULT_ERROR_UNINITIALIZED", "xpu.call"),
    ],
)
def test_what_is_quoted_or_names_no_cause_is_a_hint(said: str, name: str) -> None:
    (match,) = find(said, TEXTS, OF_CONDITIONS)
    assert (match.text.id, match.certainty) == (name, "hint")


def test_a_numbered_line_of_ipython_is_source_and_what_is_below_it_is_the_error() -> None:
    said = (
        "File /x/triton/compiler/compiler.py:250, in CompiledKernel._init_handles(self)\n"
        '    248     raise OutOfResources(self.shared, max_shared, "shared memory")\n'
        "--> 250 self.module = driver.utils.load_binary(\n"
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid"
    )
    assert ids(said)[0] == "cuda.invalid_image"


def test_the_name_of_an_error_in_bytes() -> None:
    assert ids("Error name: (<cudaError_t.cudaSuccess: 0>, b'cudaErrorInsufficientDriver')") == ["cuinit.too_old"]


def test_a_very_long_line_is_searched_in_parts_that_keep_its_number() -> None:
    said = "first\n" + "step=1 " * 500 + "CUDA error: an illegal memory access was encountered " + "x" * 5000
    lines = matching.normalise(said).lines
    assert [line.number for line in lines] == [1] + [2] * (len(lines) - 1)
    assert max(len(line.text) for line in lines) == 2000
    assert ids(said) == ["cuda.illegal_access"]
