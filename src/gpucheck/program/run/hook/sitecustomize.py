# mypy: ignore-errors
# (Types would need `typing`, and this file loads nothing that a program could bring under the same name.)
#
# Python reads this file as it starts, before the program. It waits for torch and then starts the counting. It removes
# every trace of itself, and a failure in it does not stop the program.
import gc
import os
import sys

_LOADERS = getattr(sys.modules["_frozen_importlib_external"], "_LoaderBasics", None)
# Bytes of the counters: the process has started, the counting failed, and the load of torch was seen.
_STARTED, _FAILED, _TORCH = range(3)
_SEEN, _UNSEEN, _BEFORE = 1, 2, 3


def _waiting(loaded, stolen):
    """Return an `exec_module` of Python's loaders of source files that waits for torch.

    Every way to load a module calls this method: an import in any thread, a lazy import, an import from a zip file, and
    a direct call of a loader. Finding a module does not call it. If a part of torch is loaded here without torch, the
    program loaded torch by another loader, which this method does not see.
    """
    original = _LOADERS.exec_module

    def exec_module(self, module):
        if module.__name__ != "torch":
            if module.__name__[:6] == "torch.":
                stolen()
            return original(self, module)
        loaded(None)
        was_on = gc.isenabled()
        gc.disable()  # the objects of torch and of the hooks are permanent
        try:
            original(self, module)
            _LOADERS.exec_module = original
            loaded(module)
        finally:
            if was_on:
                gc.enable()

    # Python omits code with this file name from tracebacks, as it omits its import system.
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap_external>")
    return exec_module


def _shared(path):
    """Map the file into memory. No descriptor stays open: the program's descriptors keep their usual numbers."""
    with open(path, "r+b") as file:
        if os.name != "posix" or sys.version_info >= (3, 13):
            import mmap

            return mmap.mmap(file.fileno(), 0, **({"trackfd": False} if os.name == "posix" else {}))
        import ctypes

        size = os.fstat(file.fileno()).st_size
        call = ctypes.CDLL(None).mmap
        call.restype = ctypes.c_void_p
        call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(3 * [ctypes.c_int]), ctypes.c_long)
        # PROT_READ | PROT_WRITE is 3 and MAP_SHARED 1, on every system that has them.
        address = call(None, size, 3, 1, file.fileno(), 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError("the counters cannot be mapped")
        return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _begin():
    here = os.path.dirname(os.path.abspath(__file__))
    path, root, trace, dry, ranks, before = os.environ.pop("GPUCHECK_RUN").split("\n")
    folder = os.getcwd()
    if before:
        os.environ["PYTHONPATH"] = before[1:]
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    memory, pid = _shared(path), os.getpid()

    def look():
        sys.path.insert(0, root)
        try:
            import json

            if dry:
                from gpucheck.program.run import dry as claiming

                claiming.begin(memory, folder, json.loads(dry))
            else:
                from gpucheck.program.run import hooks

                hooks.begin(memory, folder, int(trace))
                if ranks:
                    from gpucheck.program.run import recorder

                    recorder.begin(json.loads(ranks))
        except Exception as error:  # noqa: BLE001 (whatever fails of ours must not fail a program that is measured)
            memory[_FAILED] = 1  # the program goes on as if nothing had happened
            is_told = type(error).__module__ == "gpucheck.errors"
            text = (str(error) if is_told else repr(error)).encode("ascii", "replace")[:1000]
            memory[len(memory) - len(text) :] = text
            end_dry()
        finally:
            sys.path.remove(root)

    def end_dry():
        if dry:  # the program would train for real
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(70)

    def loaded(module):
        """Record that torch begins to load (None), or start the counting once it is loaded."""
        if os.getpid() != pid:  # a process that the program forked has no counters
            return
        if module is None:
            memory[_TORCH] = _SEEN
        else:
            look()

    def stolen():
        if os.getpid() == pid and memory[_TORCH] in (0, _BEFORE):
            memory[_TORCH] = _UNSEEN
            end_dry()

    is_there = "torch" in sys.modules  # another file that Python reads at its start has loaded torch
    memory[_TORCH] = _SEEN if is_there else _BEFORE if "torch._C" in sys.modules else 0
    memory[_STARTED] = 1
    if is_there:
        look()
    elif _LOADERS is not None:
        _LOADERS.exec_module = _waiting(loaded, stolen)


if "GPUCHECK_RUN" in os.environ:
    _begin()
# Load the file that Python would have read without this one.
del sys.modules["sitecustomize"]
try:
    import sitecustomize  # noqa: F401
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
    raise ImportError("No module named 'sitecustomize'", name="sitecustomize") from None
