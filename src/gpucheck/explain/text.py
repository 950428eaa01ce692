"""A text that is known: how it reads, what it means and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck.doctor.condition import Certainty


@dataclass(frozen=True, slots=True)
class Text:
    """One row of the table.

    `patterns` are regular expressions, read without regard to case, spaces and quotes; one with `\\b` in it is read by
    words. `meaning` says what happened, `certainty` how sure the text alone makes that, `then` what to type or do next.
    `conditions` are those of `gpucheck doctor` that bring it about. A `symptom` says that something failed and not
    what: it yields to every text that says more. `source` is where the claim comes from. Rows that differ by a number
    alone share their patterns, which are tried once for all of them: `number` is what the group of that name must hold.

    `common` are patterns that programs of every kind print ("Killed", "Too many open files"): they count where the rest
    of the paste speaks of GPUs, torch or training; where `beside` is given, where it holds that instead. `follows` are
    ids, or their beginnings, of what brings this about: where one of them is in the paste too, it is told first.
    `unless` is what makes it somebody else's, wherever in the paste it stands. `weak` are patterns that say little (a
    library's name beside its failing, a launcher's frames): they are a hint, in a paste that is ours, where nothing
    else is found. `logged` texts are numbers that training reports as information: they count on such a line too.
    """

    id: str
    title: str
    patterns: tuple[str, ...]
    meaning: str
    then: str
    certainty: Certainty = "strong"
    conditions: tuple[str, ...] = ()
    symptom: bool = False
    source: str = ""
    number: str = ""
    common: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    beside: str = ""
    unless: str = ""
    weak: tuple[str, ...] = ()
    logged: bool = False


# How programs begin a message of CUDA's: torch, Triton, CTranslate2, ONNX Runtime, torch before 1.0, caffe, and those
# that name the call that failed.
CUDA_SAYS = (
    r"(CUDA (driver |runtime )?error( ?\(?\d+\)?)? ?:|CUDA failed with error|CUDA failure \d+:|"
    r"Triton Error \[CUDA\]:|CUDA_?Runtime_?Error ?:?|cudaSuccess ?\(\d+ vs\. 0\)|"
    r"THCudaCheck FAIL .{1,200}error=\d+ ?:|Runtime API error \d+:|\] CUDA:|\[CUDA\]|"
    r"cuda(Malloc|Memcpy|Memset|Free|Launch|Stream|Event|Device|Set|Get)\w{0,30}"
    r"( failed| returned error)( with error)?:?) ?"
)


def by_code(*numbers: int) -> str:
    """Return how programs that give CUDA's error by its number alone write it: torch and others, caffe, torch before
    1.0, CUDA's samples, ollama, OpenMM, numba."""
    either = "|".join(map(str, numbers))
    call = "cu(Init|Mem|Module|Link|Ctx|Launch|Stream|Event|Device|Func|Occupancy)"
    return (
        rf"(\bCUDA ?(driver |runtime )?(error|failure|return code)( code| detected)?:? ?\(?|\bcudaSuccess \(|"
        rf"\bTHCudaCheck FAIL .{{1,200}} error=|\bRuntime API error |\bcudart init failure: |"
        rf"\bcuda driver library failed to get device context )({either})(?!\.?\d)|"
        rf"\bcode=({either})\(cu|\[({either})\] Call to {call}|\bInvalid error code \(({either})\) at \S{{0,200}}cuda"
    )
