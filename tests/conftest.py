"""Fixtures shared by all tests: a warm kernel that must hold nothing more after a test than before it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from notebook_kernel import NotebookKernel

pytest_plugins = ["pytester"]

WARM_UP = (
    # pyzmq's garbage collector: a thread and a context, made by the first message above 64 kB.
    "print('x' * 100_000)",
    # IPython's event loop for scripts: made by the first `%%bash`, kept for ever.
    "%%bash\ntrue",
    # libuv's signal pipe: made by a process' first store, kept for ever.
    "import torch.distributed as dist\ndist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)",
    # Every `%reset` collects garbage several times over all that torch has made.
    "import gc\ngc.collect()\ngc.freeze()",
)

OTHER_SYSTEM_PATH = os.pathsep.join(str(Path(__file__).parent / folder) for folder in ("other_system", ".."))
"""PYTHONPATH of processes that `other_system/sitecustomize.py` puts on another system than Linux."""

LIBRARY_SINGLETONS = (
    "tqdm_monitor",  # tqdm's one thread, started by its first bar
    "KMP_DUPLICATE_LIB_OK",  # set by scikit-learn's import
    "KMP_INIT_AT_FORK",  # likewise
    "torchinductor_*",  # made by torch.optim's import
    "TORCHINDUCTOR_CACHE_DIR",  # likewise
    "*.ttf",  # fonts, which matplotlib keeps open
)
"""What a notebook's libraries make at their first use and keep; no test can be the one that leaked it."""


class ModuleKernel:
    """The kernel of a module's tests, started at the first use; replaced after a test that spoiled it."""

    def __init__(self) -> None:
        self._kernel: NotebookKernel | None = None

    def get(self) -> NotebookKernel:
        if self._kernel is None:
            self._kernel = NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}).__enter__()
            for cell in WARM_UP:
                self._kernel.run(cell).check()
        return self._kernel

    def discard(self) -> None:
        if self._kernel is not None:
            kernel, self._kernel = self._kernel, None
            kernel.__exit__()


@pytest.fixture(scope="module")
def module_kernel() -> Iterator[ModuleKernel]:
    module_kernel = ModuleKernel()
    yield module_kernel
    module_kernel.discard()


@pytest.fixture
def kernel(module_kernel: ModuleKernel) -> Iterator[NotebookKernel]:
    """A kernel with an empty namespace and nbdist loaded; the test fails if it leaves anything behind."""
    kernel = module_kernel.get()
    try:
        # Unloaded first, so that what the last test set for the notebook is gone.
        kernel.run(
            "manager = get_ipython().extension_manager\n"
            "manager.unload_extension('nbdist')\n"
            "assert manager.load_extension('nbdist') in (None, 'already loaded')\n"
            "del manager",
            store_history=False,
        ).check()
        before = kernel.footprint()
        yield kernel
        assert kernel.alive, "the test let the kernel die; start one of its own with NotebookKernel()"
        assert not kernel.unfinished, f"still running after the test; {kernel.unfinished[0].describe()}"
        kernel.reset()
        kernel.assert_no_leaks(before, allow=LIBRARY_SINGLETONS)
    except BaseException:
        module_kernel.discard()
        raise


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where NVML finds no GPU, with what it said."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := _why_no_gpu()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str | None:
    # Through NVML, as the package itself: a question to CUDA would start it in this process.
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"no GPU: {error}"
    return None if count else "no GPU: NVML counts none"
