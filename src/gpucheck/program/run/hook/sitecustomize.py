# mypy: ignore-errors
# There are no types, because an import of `typing` could load a file of the program with this name.
#
# Python reads this file at its start, before the program. This file starts the hooks of `gpucheck run` once torch is
# loaded. It removes every trace of itself, and a failure in it does not stop the program.
import gc
import os
import sys

_LOADERS = getattr(sys.modules["_frozen_importlib_external"], "_LoaderBasics", None)
# Bytes of the counters: the process has started, the hooks failed, and the load of torch was seen.
_STARTED, _FAILED, _TORCH = range(3)
_SEEN, _UNSEEN, _ONLY_C = 1, 2, 3  # _ONLY_C: torch._C was loaded at the start, torch was not


def _watching(loaded, missed):
    """Return an `exec_module` for Python's loaders of source files that calls `loaded` before and after torch's load.

    Every way to load a module calls this method: an import in any thread, a lazy import, an import from a zip file, and
    a direct call of a loader. If a part of torch is loaded before torch, another loader has loaded torch.
    """
    original = _LOADERS.exec_module

    def exec_module(self, module):
        if module.__name__ != "torch":
            if module.__name__[:6] == "torch.":
                missed()
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
    """Map the file into memory. No descriptor stays open, so the program's descriptors get their usual numbers."""
    with open(path, "r+b") as file:
        if os.name != "posix" or sys.version_info >= (3, 13):
            import mmap

            return mmap.mmap(file.fileno(), 0, **({"trackfd": False} if os.name == "posix" else {}))
        import ctypes

        size = os.fstat(file.fileno()).st_size
        call = ctypes.CDLL(None).mmap
        call.restype = ctypes.c_void_p
        call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(3 * [ctypes.c_int]), ctypes.c_long)
        # PROT_READ | PROT_WRITE is 3, and MAP_SHARED is 1.
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

    def start_hooks():
        sys.path.insert(0, root)
        try:
            import json

            if dry:
                from gpucheck.program.run import dry as dry_run

                dry_run.begin(memory, folder, json.loads(dry))
            else:
                from gpucheck.program.run import hooks

                hooks.begin(memory, folder, int(trace))
                if ranks:
                    from gpucheck.program.run import recorder

                    recorder.begin(json.loads(ranks))
        except Exception as error:  # noqa: BLE001 (a failure of gpucheck must not stop the program)
            memory[_FAILED] = 1  # the program continues
            is_known = type(error).__module__ == "gpucheck.errors"
            text = (str(error) if is_known else repr(error)).encode("ascii", "replace")[:1000]
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
        """Record that torch begins to load, if `module` is None, or start the hooks."""
        if os.getpid() != pid:  # a process that the program forked has no counters
            return
        if module is None:
            memory[_TORCH] = _SEEN
        else:
            start_hooks()

    def missed():
        if os.getpid() == pid and memory[_TORCH] in (0, _ONLY_C):
            memory[_TORCH] = _UNSEEN
            end_dry()

    is_loaded = "torch" in sys.modules  # by another file that Python reads at its start
    memory[_TORCH] = _SEEN if is_loaded else _ONLY_C if "torch._C" in sys.modules else 0
    memory[_STARTED] = 1
    if is_loaded:
        start_hooks()
    elif _LOADERS is not None:
        _LOADERS.exec_module = _watching(loaded, missed)


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
