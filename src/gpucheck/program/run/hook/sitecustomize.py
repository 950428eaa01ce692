# mypy: ignore-errors
# (Types would need `typing`, and this file loads nothing that a program could bring under the same name.)
#
# Python reads this file as it starts, before the program: it waits for torch and then has it looked at. It takes every
# trace of itself away, and stops nothing by failing.
import gc
import os
import sys


class _Waiting:
    """The first finder of modules: it lets the others find them, and calls back once `name` is loaded."""

    def __init__(self, name, loaded):
        self.name, self.loaded = name, loaded

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self.loaded)
                return spec
        return None


class _Loader:
    """The loader of a module, which calls back after it."""

    def __init__(self, loader, loaded):
        self.loader, self.loaded = loader, loaded

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        was_on = gc.isenabled()
        gc.disable()  # torch and what looks at it stay
        try:
            self.loader.exec_module(module)
            self.loaded()
        finally:
            if was_on:
                gc.enable()


# Python leaves its own importing out of tracebacks, by this name.
for _method in (_Waiting.find_spec, _Loader.create_module, _Loader.exec_module):
    _method.__code__ = _method.__code__.replace(co_filename="<frozen importlib._bootstrap>")


def _shared(path):
    """The file as memory. No descriptor stays open: the program's own are to have the numbers that they always had."""
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
    path, root, trace, snapshot, dry, ranks, before = os.environ.pop("GPUCHECK_RUN").split("\n")
    folder = os.getcwd()
    if before:
        os.environ["PYTHONPATH"] = before[1:]
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) != here]
    sys.path_importer_cache.pop(here, None)
    memory = _shared(path)

    def look():
        sys.path.insert(0, root)
        try:
            if dry:
                import json

                from gpucheck.program.run import dry as claiming

                claiming.begin(memory, folder, json.loads(dry))
            else:
                from gpucheck.program.run import hooks

                hooks.begin(memory, folder, int(trace), snapshot)
                if ranks:
                    import json

                    from gpucheck.program.run import recorder

                    recorder.begin(json.loads(ranks))
        except Exception as error:  # noqa: BLE001 (whatever fails of ours must not fail the program)
            memory[1] = 1  # and the program goes on as if nothing had been
            is_told = type(error).__module__ == "gpucheck.errors"
            text = (str(error) if is_told else repr(error)).encode("ascii", "replace")[:1000]
            memory[len(memory) - len(text) :] = text
        finally:
            sys.path.remove(root)

    memory[0] = 1  # the program's process is there
    sys.meta_path.insert(0, _Waiting("torch", look))


if "GPUCHECK_RUN" in os.environ:
    _begin()
# What Python would have read without this file.
del sys.modules["sitecustomize"]
try:
    import sitecustomize  # noqa: F401
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
    raise ImportError("No module named 'sitecustomize'", name="sitecustomize") from None
# A finder of the user's may stand before ours now: ours is asked first, and asks the others.
sys.meta_path.sort(key=lambda finder: not isinstance(finder, _Waiting))
