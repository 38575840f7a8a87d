"""Kinds with memory of their own: numpy's arrays and torch's tensors.

Their bytes are watched, sent and written back as memory (`Kind.memory`), once however many views
there are of it; what is said here of content is the layout alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import Any

from nbdist.values.kind import Buffer, Content, Kind, attributes_of, set_attributes


class ArrayKind(Kind):
    """numpy arrays."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        base = () if obj.base is None else (obj.base,)
        return (*base, *self.content(obj).parts)

    def content(self, obj: Any) -> Content:
        parts = tuple(obj.flat) if obj.dtype.hasobject else ()
        facts = (_layout(obj), obj.flags.writeable)
        return Content((*parts, *attributes_of(obj).values()), facts)  # a masked array has its mask there

    def memory(self, obj: Any) -> Buffer | None:
        return array_memory(obj)

    def layout(self, obj: Any) -> Any:
        return obj.dtype, obj.shape, obj.strides, obj.ctypes.data - array_root(obj).ctypes.data

    def refit(self, twin: Any, layout: Any, size_bytes: int, holder: Any) -> None:
        dtype, shape, *_ = layout
        if holder is not None or not twin.flags.owndata:
            raise TypeError("it is an array that looks at other memory here")
        twin.dtype = dtype
        twin.resize(shape, refcheck=False)
        if self.layout(twin) != layout:
            raise TypeError("it is an array that lies otherwise in memory here")

    def portable(self, obj: Any) -> Any:
        return obj.copy(), attributes_of(obj), obj.flags.writeable

    def difference(self, obj: Any, before: Content) -> Any:
        if obj.dtype.hasobject or before.facts[0] != _layout(obj):
            return self.portable(obj)
        return None, attributes_of(obj), obj.flags.writeable  # its bytes are watched

    def land(self, twin: Any, portable: Any) -> None:
        values, attributes, writeable = portable
        root = array_root(twin)
        with unlocked(root) if root is not twin else contextlib.nullcontext():
            if values is not None:
                if not twin.flags.writeable:
                    twin.flags.writeable = True
                self._fill(twin, values)
            if twin.flags.writeable != writeable:
                twin.flags.writeable = writeable
        set_attributes(twin, attributes)

    def _fill(self, twin: Any, values: Any) -> None:
        if twin.dtype != values.dtype and twin.dtype.itemsize == values.dtype.itemsize:
            twin.dtype = values.dtype  # the memory stays as it is
        if twin.shape != values.shape:
            twin.resize(values.shape, refcheck=False)
        twin[...] = values


def _layout(array: Any) -> tuple[Any, ...]:
    return array.ctypes.data, array.shape, array.strides, array.dtype


@contextlib.contextmanager
def unlocked(root: Any) -> Iterator[None]:
    """While it lasts, an array's memory can be written through views, also if the array is read-only: that
    says nothing of views which were made before."""
    locked = not root.flags.writeable and root.flags.owndata
    if locked:
        root.flags.writeable = True
    try:
        yield
    finally:
        if locked:
            root.flags.writeable = False


def array_root(array: Any) -> Any:
    """The array that a view looks at in the end."""
    import numpy

    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return array


def is_of_file(root: Any) -> bool:
    """Whether an array that is no view is a file, which both sides see: its bytes are not watched or sent."""
    import numpy

    if not isinstance(root, numpy.memmap) or root.mode == "c" or root.filename is None:
        return False
    return os.path.exists(root.filename)


def array_memory(array: Any) -> Buffer | None:
    """The memory that an array looks at, its owner's whole; None where it holds objects, or nothing, or is a
    file's."""
    import numpy

    owner = array_root(array)
    if array.dtype.hasobject or owner.dtype.hasobject or owner.nbytes == 0 or is_of_file(owner):
        return None
    # numpy 2 moved the function.
    bounds: Any = getattr(numpy, "byte_bounds", None) or numpy.lib.array_utils.byte_bounds
    low, high = bounds(owner)
    return Buffer(low, high - low)


class TensorKind(Kind):
    """torch tensors and parameters. Their memory is the storage's, which views share."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return (*leaf_state(obj), *attributes_of(obj).values())

    def content(self, obj: Any) -> Content:
        if _is_lazy(obj):
            return Content((type(obj), *self.parts(obj)))
        layout: tuple[Any, ...] = (obj.shape, obj.dtype, obj.device, obj.requires_grad)
        if is_strided(obj):
            layout += (obj.data_ptr(), obj.storage_offset(), obj.stride())
        if str(obj.layout) == "torch.sparse_coo":
            layout += (obj.is_coalesced(),)
        if self.memory(obj) is None:  # the bytes cannot be watched
            layout += (obj._version, *(_digest(part) for part in components(obj).values()))
        return Content((type(obj), *self.parts(obj)), layout)

    def memory(self, obj: Any) -> Buffer | None:
        if not is_strided(obj) or obj.device.type != "cpu" or obj.is_shared():
            return None
        storage = obj.untyped_storage()
        return Buffer(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else None

    def layout(self, obj: Any) -> Any:
        return obj.dtype, obj.shape, obj.stride(), obj.storage_offset()

    def refit(self, twin: Any, layout: Any, size_bytes: int, holder: Any) -> None:
        import torch

        if holder is not None and not isinstance(holder, torch.Tensor):
            raise TypeError("it is a tensor that looks at other memory than an array here")
        dtype, shape, stride, offset = layout
        storage = torch.UntypedStorage(size_bytes) if holder is None else holder.untyped_storage()
        if twin.is_leaf and twin.grad is not None and twin.grad.shape != shape:
            twin.grad = None  # torch wants it to fit at any moment
        twin.data = torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)

    def portable(self, obj: Any) -> Any:
        if _is_lazy(obj):
            raise TypeError("a parameter without a shape has no content to bring back")
        data = obj.detach() if is_strided(obj) else obj.detach().clone()
        return data, obj.requires_grad, leaf_state(obj), attributes_of(obj), self.memory(obj) is not None

    def land(self, twin: Any, portable: Any) -> None:
        data, requires_grad, state, attributes, has_place = portable
        if _is_lazy(twin):
            twin.materialize(data.shape, dtype=data.dtype)
        if has_place:
            if not _lies_like(twin, data):
                _put_there(twin, data)
        elif not _holds(twin, data):
            if _fits(twin, data):
                twin.detach().copy_(data)
            elif not _fill_components(twin, data):
                _put_there(twin, data)
        if twin.is_leaf:
            twin.requires_grad_(requires_grad)
            set_leaf_state(twin, state)
        set_attributes(twin, attributes)

    def after_memory(self, twin: Any) -> None:
        import torch

        torch.autograd.graph.increment_version(twin)


def leaf_state(tensor: Any) -> tuple[Any, Any, Any]:
    """What a leaf of autograd holds beside its values: its gradient and its hooks."""
    if not tensor.is_leaf:
        return None, None, None
    return tensor.grad, tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def set_leaf_state(tensor: Any, state: tuple[Any, Any, Any]) -> None:
    """Give a leaf what `leaf_state` says."""
    import torch

    grad, hooks, post_hooks = state
    if grad is not None and not grad.is_sparse and _form(grad) != _form(tensor):
        grad.data = torch.zeros_like(tensor)  # a twin of its own, whose new content comes after this
    tensor.grad = grad
    if hooks is not tensor._backward_hooks:
        tensor._backward_hooks = hooks
    if post_hooks is not tensor._post_accumulate_grad_hooks:
        tensor._post_accumulate_grad_hooks = post_hooks


def _form(tensor: Any) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def _is_lazy(tensor: Any) -> bool:
    from torch.nn.parameter import is_lazy

    return bool(is_lazy(tensor))


def is_strided(tensor: Any) -> bool:
    """Whether a tensor lies plainly in memory: no sparse, quantised, wrapped or meta one."""
    import torch

    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not _is_lazy(tensor)
        and not hasattr(type(tensor), "__tensor_flatten__")
    )


def components(tensor: Any) -> dict[str, Any]:
    """The plain tensors that a sparse, quantised or wrapping one on the CPU is made of, by name."""
    if tensor.device.type != "cpu" or _is_lazy(tensor):
        return {}
    if hasattr(type(tensor), "__tensor_flatten__"):
        return {name: getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]}
    plain = tensor.detach()
    if tensor.is_quantized:
        return {"int_repr": plain.int_repr()}
    return {name: getattr(plain, name)() for name in _SPARSE.get(str(tensor.layout), ())}


# By the name of the layout.
_SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    **dict.fromkeys(("torch.sparse_csr", "torch.sparse_bsr"), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys(("torch.sparse_csc", "torch.sparse_bsc"), ("ccol_indices", "row_indices", "values")),
}


def _digest(tensor: Any) -> bytes:
    """Stands for a plain tensor's content."""
    bits = tensor.detach().contiguous()
    if not is_strided(bits) or not bits.numel():
        return b""
    return hashlib.blake2b(memoryview(_as_bytes(bits).numpy())).digest()


def _fill_components(twin: Any, data: Any) -> bool:
    """Write a sparse tensor's content into the twin's own memory, if it fits."""
    if twin.layout is not data.layout or is_strided(twin) or twin.is_quantized:
        return False
    if twin.shape != data.shape or twin.dtype != data.dtype:
        return False
    mine, new = components(twin), components(data)
    if not mine or any(not _fits(part, new[name]) for name, part in mine.items()):
        return False
    for name, part in mine.items():
        part.copy_(new[name])
    if "_indices" in mine:
        twin._coalesced_(data.is_coalesced())
    return True


def _fits(twin: Any, data: Any) -> bool:
    """Whether the twin can keep its storage."""
    return bool(
        twin.shape == data.shape and twin.dtype == data.dtype and is_strided(twin) and is_strided(data)
    )


def _lies_like(twin: Any, data: Any) -> bool:
    """Whether the twin looks at memory just as `data` does: otherwise it was put elsewhere (`.data = ...`,
    `set_`), and shares memory with others than before."""
    return is_strided(twin) and _place(twin) == _place(data)


def _place(tensor: Any) -> tuple[Any, ...]:
    return tensor.untyped_storage().data_ptr(), tensor.data_ptr(), *_form(tensor), tensor.stride()


def _put_there(twin: Any, data: Any) -> None:
    """The twin lies where `data` does from now on."""
    if twin.is_leaf and twin.grad is not None and _form(twin) != _form(data):
        twin.grad = None  # torch wants it to fit at any moment; it comes with the state
    twin.data = data


def _holds(twin: Any, data: Any) -> bool:
    """Whether the twin has these very values already: then it, and any graph on it, is left alone."""
    import torch

    if not _fits(twin, data) or twin.device != data.device:
        return False
    if twin.stride() != data.stride():
        return False
    return torch.equal(_as_bytes(twin), _as_bytes(data))


def _as_bytes(tensor: Any) -> Any:
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
