"""How numpy's arrays and torch's tensors are written into a graph: each piece of memory once, whoever
looks at it, so that views stay views and an array on a tensor's memory stays on it."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Iterable
from typing import Any

from nbdist.values.kind import Buffer, Spans
from nbdist.values.numeric import array_memory, array_root, leaf_state, set_leaf_state
from nbdist.values.twins import Twins

_LARGE_BYTES = 1 << 26
_MAPPED_BYTES = 1 << 20  # larger storages stay on the shared memory in which they came


class NumberReducer:
    """For one pickler: `reduce` says how an object is rebuilt, as `object.__reduce__` does.

    Args:
        twins: objects that the other side has.
        by_value: whether their data travels all the same.
    """

    def __init__(self, twins: Twins, *, by_value: bool):
        self._twins = twins
        self._by_value = by_value
        self._storages: dict[tuple[str, int, int], Any] = {}
        self._arrays: dict[Buffer, Any] = {}
        self._spans = Spans(())
        self._alive: list[Any] = []

    def expect(self, objects: Iterable[Any]) -> None:
        """Arrays that may come later: a tensor on a part of one is put on it even if it comes first."""
        numpy = sys.modules.get("numpy")
        for obj in objects:
            if numpy is not None and type(obj) is numpy.ndarray:
                root, memory = array_root(obj), array_memory(obj)
                if memory is not None and root.base is None and _is_plain(root):
                    self._arrays[memory] = root
        self._spans = Spans(self._arrays)

    def key_of(self, storage: Any) -> Any:
        """Names the notebook's object whose memory this is: a new tensor on it stays a view of it."""
        if storage.device.type != "cpu" or not storage.nbytes() or self._by_value:
            return None
        memory = Buffer(storage.data_ptr(), storage.nbytes())
        key = self._twins.key_at(memory)
        if key is not None:
            return ("storage", key, 0, memory.size_bytes)
        part = self._twins.key_around(memory)
        if part is None or _is_tensor(self._twins.known[part[0]]):
            return None
        return ("storage", *part, memory.size_bytes)

    def _key_at(self, memory: Buffer) -> int | None:
        return None if self._by_value else self._twins.key_at(memory)

    def reduce(self, obj: Any) -> Any:
        """How to rebuild an object; None for one that is neither numpy's nor torch's."""
        if "torch" in sys.modules:
            reduced = self._reduce_torch(obj)
            if reduced is not None:
                return reduced
        if "numpy" in sys.modules and isinstance(obj, sys.modules["numpy"].ndarray):
            return self._reduce_array(obj)
        return None

    def _reduce_array(self, array: Any) -> Any:
        import numpy

        memory = array_memory(array)
        if memory is None or type(array) is not numpy.ndarray:
            return None
        owner = self._owner(array, memory)
        if owner is None or (isinstance(owner, numpy.ndarray) and not _is_plain(array_root(owner))):
            return None
        offset = array.ctypes.data - memory.address
        layout = (array.shape, array.dtype, owner, offset, array.strides)
        return _make_array, (*layout, bool(array.flags.writeable))

    def _owner(self, array: Any, memory: Buffer) -> Any:
        """Who has the array's memory on the other side; None sends the array by itself."""
        key = self._key_at(memory)
        if key is not None:
            return self._twins.known[key]
        storage = self._storages.get(("cpu", memory.address, memory.size_bytes))
        if storage is not None:
            return storage
        if array.base is None:
            self._arrays[memory] = array
            return None
        if memory.size_bytes > max(_LARGE_BYTES, 8 * array.nbytes):
            return None  # a small piece of something large: just the piece
        root = array_root(array)
        if _is_tensor(root.base):
            return root.base
        return None if root is array else root

    def _reduce_torch(self, obj: Any) -> Any:
        import torch

        if isinstance(obj, torch.storage.TypedStorage):
            return _make_typed_storage, (self._one_storage(obj._untyped_storage), obj.dtype)
        if isinstance(obj, torch.UntypedStorage):
            return self._reduce_storage(obj)
        if isinstance(obj, torch.nn.parallel.DistributedDataParallel):
            return _itself, (obj.module,)
        if isinstance(obj, torch.Tensor):
            return _reduce_tensor(obj)
        if isinstance(obj, torch.nn.Module) and _is_parametrized(type(obj)):
            return _new, (type(obj),), vars(obj), None, None, _set_vars
        if isinstance(obj, type) and issubclass(obj, torch.nn.Module) and _is_parametrized(obj):
            return _make_parametrized, (obj.__bases__[0], _properties(obj))
        return None

    def _one_storage(self, storage: Any) -> Any:
        """One object for one piece of memory: views and tied weights stay shared."""
        key = (str(storage.device), storage.data_ptr(), storage.nbytes())
        return self._storages.setdefault(key, storage)

    def _reduce_storage(self, storage: Any) -> Any:
        on_cpu = storage.cpu()
        self._alive.append(on_cpu)
        if not on_cpu.nbytes():
            return _make_storage, (b"",)
        memory = Buffer(on_cpu.data_ptr(), on_cpu.nbytes())
        outer = memory if memory in self._arrays else self._spans.around(memory)
        if outer is not None:
            return storage_of, (self._arrays[outer], memory.address - outer.address, memory.size_bytes)
        return _make_storage, (pickle.PickleBuffer(memory.view()),)


def _reduce_tensor(tensor: Any) -> Any:
    """What torch's own pickling leaves behind: a leaf's gradient and its hooks."""
    if tensor.grad_fn is not None:
        # Its graph stays behind: `backward()` on it must not seem to work.
        return _itself, (tensor.detach(),)
    state = leaf_state(tensor)
    if all(part is None for part in state):
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="backward hook")  # torch drops them, and says so
        reduced = tensor.__reduce_ex__(5)
    return (*reduced, state, None, None, set_leaf_state) if len(reduced) == 2 else reduced


def _is_tensor(obj: Any) -> bool:
    return "torch" in sys.modules and isinstance(obj, sys.modules["torch"].Tensor)


def _is_plain(array: Any) -> bool:
    """Whether an array's memory can be looked at as a whole, in order."""
    return bool(array.flags.forc and array.flags.writeable and not array.dtype.hasobject)


def storage_of(owner: Any, offset: int = 0, size_bytes: int | None = None) -> Any:
    """The storage of a tensor, or one on a part of an array's memory."""
    import numpy
    import torch

    if isinstance(owner, torch.UntypedStorage):
        return owner
    if isinstance(owner, torch.Tensor):
        return owner.untyped_storage()
    memory = array_root(owner).ravel(order="K").view(numpy.uint8)
    end = len(memory) if size_bytes is None else offset + size_bytes
    return torch.from_numpy(memory[offset:end]).untyped_storage()


def _make_array(shape: Any, dtype: Any, owner: Any, offset: int, strides: Any, writeable: bool) -> Any:
    """An array on the memory of another, or of a tensor."""
    import numpy

    if isinstance(owner, numpy.ndarray):
        memory = array_root(owner).ravel(order="K")
    else:
        import torch

        memory = torch.empty(0, dtype=torch.uint8).set_(storage_of(owner)).numpy()
    array = numpy.ndarray(shape, dtype, memory, offset, strides)
    array.flags.writeable = writeable
    return array


def _make_storage(data: Any) -> Any:
    import torch

    if not len(data):
        return torch.UntypedStorage(0)
    if len(data) > _MAPPED_BYTES:
        return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    storage = torch.UntypedStorage(len(data))  # of torch's own memory: it can be resized
    torch.empty(0, dtype=torch.uint8).set_(storage).copy_(
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
    )
    return storage


def _make_typed_storage(untyped: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _is_parametrized(cls: type) -> bool:
    """Whether a module's class is one of those that `torch.nn.utils.parametrize` makes, one a module."""
    return cls.__module__ == "torch.nn.utils.parametrize" and cls.__name__.startswith("Parametrized")


def _properties(cls: type) -> tuple[str, ...]:
    return tuple(name for name, value in vars(cls).items() if isinstance(value, property))


def _make_parametrized(base: Any, properties: tuple[str, ...]) -> Any:
    from torch.nn.utils import parametrize

    model = base.__new__(base)
    parametrize._inject_new_class(model)
    for name in properties:
        parametrize._inject_property(model, name)
    return type(model)


def _new(cls: Any) -> Any:
    return cls.__new__(cls)


def _set_vars(obj: Any, attributes: dict[str, Any]) -> None:
    vars(obj).update(attributes)


def _itself(obj: Any) -> Any:
    return obj
