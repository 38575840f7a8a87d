"""How numpy's arrays and torch's tensors are written into a graph: each piece of memory once, whoever
looks at it, so that views stay views and an array on a tensor's memory stays on it."""

from __future__ import annotations

import os
import pickle
import sys
import types
import warnings
from collections.abc import Iterable
from typing import Any

from nbdist.values.kind import Buffer, Spans
from nbdist.values.models import model_reducer_of, reduce_compiled
from nbdist.values.numeric import (
    array_memory,
    array_root,
    is_of_file,
    is_strided,
    leaf_state,
    set_leaf_state,
    unlocked,
)
from nbdist.values.rebuild import Reduce, itself, set_vars
from nbdist.values.remote import LEAST_BYTES, Remote, can_be_remote
from nbdist.values.shards import Whole
from nbdist.values.twins import Twins

_LARGE_BYTES = 1 << 26
_MAPPED_BYTES = 1 << 24  # larger storages stay on the memory file in which they came


class NumberReducer:
    """For one pickler: `reduce` says how an object is rebuilt, as `object.__reduce__` does.

    Args:
        twins: objects that the other side has.
        by_value: whether their data travels all the same.
        lends: whether large memory is not sent, but read from this process.

    Attributes:
        lent_bytes: how much of it so far.
    """

    def __init__(self, twins: Twins, *, by_value: bool, lends: bool):
        self._twins = twins
        self._by_value = by_value
        self._lends = lends and can_be_remote()
        self.lent_bytes = 0
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

    def reducer_of(self, cls: type) -> Reduce | None:
        """What says how objects of a class are rebuilt; None for what is neither numpy's nor torch's."""
        if cls is Buffer:
            return self._reduce_memory
        if "torch" in sys.modules:
            reduce = self._torch_reducer_of(cls)
            if reduce is not None:
                return reduce
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        if issubclass(cls, numpy.ndarray):
            if issubclass(cls, numpy.memmap):
                return _reduce_memmap
            return self._reduce_array if cls is numpy.ndarray else _reduce_array_of_class
        return _reduce_limits if cls in (numpy.finfo, numpy.iinfo) else None

    def _torch_reducer_of(self, cls: type) -> Reduce | None:
        import torch

        if issubclass(cls, torch.storage.TypedStorage):
            return self._reduce_typed_storage
        if issubclass(cls, torch.UntypedStorage):
            return self._reduce_storage
        if issubclass(cls, torch.Tensor):
            return self._reduce_tensor
        if cls is types.FunctionType:
            return reduce_compiled
        return _reduce_limits if cls in (torch.finfo, torch.iinfo) else model_reducer_of(cls)

    def _reduce_memory(self, memory: Buffer) -> Any:
        return itself, (self._bytes_of(memory),)

    def _bytes_of(self, memory: Buffer) -> Any:
        """What the other side needs to have the same bytes."""
        if not self._lends or memory.size_bytes < LEAST_BYTES:
            return pickle.PickleBuffer(memory.view())
        self.lent_bytes += memory.size_bytes
        return Remote(pid=os.getpid(), address=memory.address, size_bytes=memory.size_bytes)

    def _reduce_tensor(self, tensor: Any) -> Any:
        if not self._twins.shards.are_sharded(tensor):
            return _reduce_tensor(tensor)
        whole = Whole(self._twins.shards.path_of(tensor))
        is_parameter = isinstance(tensor, sys.modules["torch"].nn.Parameter)
        made = (whole, is_parameter, tensor.requires_grad and tensor.is_leaf)
        return _make_whole, made, self._twins.shards.leaf_state(tensor), None, None, set_leaf_state

    def _place_of(self, memory: Buffer) -> tuple[Any, int] | None:
        """The notebook's object that has this memory, and where in it: a new tensor there stays a view."""
        if self._by_value:
            return None
        key = self._twins.key_at(memory)
        if key is not None:
            return self._twins.known[key], 0
        part = self._twins.key_around(memory)
        if part is None or _is_tensor(self._twins.known[part[0]]):
            return None
        return self._twins.known[part[0]], part[1]

    def _key_at(self, memory: Buffer) -> int | None:
        return None if self._by_value else self._twins.key_at(memory)

    def _reduce_array(self, array: Any) -> Any:
        import numpy

        memory, root = array_memory(array), array_root(array)
        if is_of_file(root):
            offset = array.ctypes.data - root.ctypes.data
            return _make_array, (array.shape, array.dtype, root, offset, array.strides, array.flags.writeable)
        if memory is None:
            return None
        owner = self._owner(array, memory)
        if owner is None and array.base is None and array.flags.forc:
            order = "C" if array.flags.c_contiguous else "F"
            data = self._bytes_of(memory)
            return _make_own_array, (data, array.shape, array.dtype, order, bool(array.flags.writeable))
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
        if self._arrays.get(memory) is array:
            return None  # a tensor on it has come first, and waits for it
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

    def _reduce_typed_storage(self, obj: Any) -> Any:
        return _make_typed_storage, (self._one_storage(obj._untyped_storage), obj.dtype)

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
        place = self._place_of(memory)
        if place is not None:
            return storage_of, (*place, memory.size_bytes)
        outer = memory if memory in self._arrays else self._spans.around(memory)
        if outer is not None:
            return storage_of, (self._arrays[outer], memory.address - outer.address, memory.size_bytes)
        return _make_storage, (self._bytes_of(memory),)


def _reduce_tensor(tensor: Any) -> Any:
    """What torch's own pickling leaves behind: a leaf's gradient and its hooks."""
    if tensor.grad_fn is not None:
        # Its graph stays behind: `backward()` on it must not seem to work.
        return itself, (tensor.detach(),)
    with warnings.catch_warnings():
        # torch drops hooks and says so; the other is about our own work, not the user's.
        warnings.filterwarnings("ignore", message="backward hook|TypedStorage")
        reduced = _with_typed_storage(tensor.__reduce_ex__(5))
    if not is_strided(tensor):
        reduced = (_rebuild_quietly, reduced[:2], *reduced[2:])
    state = leaf_state(tensor)
    if all(part is None for part in state) or len(reduced) != 2:
        return reduced
    return (*reduced, state, None, None, set_leaf_state)


def _make_whole(tensor: Any, is_parameter: bool, requires_grad: bool) -> Any:
    if is_parameter:
        return sys.modules["torch"].nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _with_typed_storage(reduced: Any) -> Any:
    """torch hands newer dtypes' storages to a function that expects a typed one."""
    import torch

    make, args, *rest = reduced
    if make is torch._utils._rebuild_tensor_v3:
        typed = torch.storage.TypedStorage(wrap_storage=args[0], dtype=torch.uint8, _internal=True)
        return (make, (typed, *args[1:]), *rest)
    if make is torch._tensor._rebuild_from_type_v2:
        inner, cls, inner_args, state = args
        return (make, (inner, cls, _with_typed_storage((inner, inner_args))[1], state), *rest)
    return reduced


def _reduce_limits(limits: Any) -> Any:
    """`finfo` and `iinfo`; torch's know their type by name only."""
    if type(limits).__module__.startswith("torch"):
        return type(limits), (getattr(sys.modules["torch"], limits.dtype),)
    return type(limits), (limits.dtype,)


def _rebuild_quietly(make: Any, args: Any) -> Any:
    """torch's rebuilding warns of what is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*args)


def _reduce_memmap(array: Any) -> Any:
    """A file is mapped again."""
    if array_root(array) is not array or not is_of_file(array):
        return _reduce_array_of_class(array)
    mode = "r" if array.mode == "r" else "r+"  # "w+" would empty it
    order = "C" if array.flags.c_contiguous else "F"
    return type(array), (array.filename, array.dtype, mode, array.offset, array.shape, order)


def _reduce_array_of_class(array: Any) -> Any:
    """An array of another class than numpy's first: a view is rebuilt as one, and the attributes that
    numpy leaves behind of the user's classes come too."""
    import numpy

    cls: Any = type(array)
    if any(getattr(cls, name) is not getattr(numpy.ndarray, name) for name in _ARRAY_PICKLING):
        return None
    users = cls.__module__.partition(".")[0] != "numpy"
    own = dict(vars(array)) if users and hasattr(array, "__dict__") else {}
    is_view = isinstance(array.base, numpy.ndarray)
    plain = array.view(type=numpy.ndarray) if is_view else numpy.array(array, subok=False, order="K")
    return _make_array_of_class, (plain, cls, array.dtype), own, None, None, set_vars


_ARRAY_PICKLING = ("__reduce__", "__reduce_ex__", "__setstate__")


def _make_array_of_class(plain: Any, cls: Any, dtype: Any) -> Any:
    array = plain.view(type=cls)
    if array.dtype != dtype:
        array.dtype = dtype
    return array


def _make_own_array(data: Any, shape: Any, dtype: Any, order: Any, writeable: bool) -> Any:
    """An array with memory of its own, which can be resized; a large one lies where it came."""
    import numpy

    if isinstance(data, Remote):
        array = numpy.empty(shape, dtype, order)
        data.fill(Buffer(array.ctypes.data, array.nbytes), array)
        array.flags.writeable = writeable
        return array
    there = numpy.frombuffer(data, numpy.uint8)
    if len(there) > _MAPPED_BYTES:
        array = numpy.ndarray(shape, dtype, there, order=order)
    else:
        array = numpy.empty(shape, dtype, order)
        array.ravel(order="K").view(numpy.uint8)[:] = there
    array.flags.writeable = writeable
    return array


def _is_tensor(obj: Any) -> bool:
    return "torch" in sys.modules and isinstance(obj, sys.modules["torch"].Tensor)


def _is_plain(array: Any) -> bool:
    """Whether an array's memory can be looked at as a whole, in order, and be written (see `unlocked`)."""
    flags = array.flags
    return bool(flags.forc and (flags.writeable or flags.owndata) and not array.dtype.hasobject)


def storage_of(owner: Any, offset: int = 0, size_bytes: int | None = None) -> Any:
    """The storage of a tensor, or one on a part of an array's memory."""
    import numpy
    import torch

    if isinstance(owner, torch.UntypedStorage):
        return owner
    if isinstance(owner, torch.Tensor):
        return owner.untyped_storage()
    root = array_root(owner)
    with unlocked(root):
        memory = root.ravel(order="K").view(numpy.uint8)
    end = len(memory) if size_bytes is None else offset + size_bytes
    return torch.from_numpy(memory[offset:end]).untyped_storage()


def _make_array(shape: Any, dtype: Any, owner: Any, offset: int, strides: Any, writeable: bool) -> Any:
    """An array on the memory of another, or of a tensor."""
    import numpy

    if isinstance(owner, numpy.ndarray):
        root = array_root(owner)
        with unlocked(root):
            memory = root.ravel(order="K")
    else:
        import torch

        memory = torch.empty(0, dtype=torch.uint8).set_(storage_of(owner)).numpy()
    array = numpy.ndarray(shape, dtype, memory, offset, strides)
    if array.flags.writeable != writeable:
        array.flags.writeable = writeable
    return array


def _make_storage(data: Any) -> Any:
    import torch

    if isinstance(data, Remote) or not len(data):
        storage = torch.UntypedStorage(len(data))
        if len(data):
            data.fill(Buffer(storage.data_ptr(), len(data)), storage)
        return storage
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
