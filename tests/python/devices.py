# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The device that tests train on: the CPU, or the device without hardware of the C++ tests (tests/hooks/fake_device.h).

The variable TEST_DEVICE_LIBRARY names the library of that device; ctest has a second entry with it for each program that
trains on a device. Its name in torch is "fake". It has streams, events, pinned memory and autocast, and the CPU's
operators, whose results appear later.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import types
from collections.abc import Iterator
from typing import Any

import gradtune._wrap
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

LIBRARY = os.environ.get("TEST_DEVICE_LIBRARY", "")


@functools.cache
def device() -> torch.device:
    """The device to train on. It has to be known before the first backward pass."""
    if not LIBRARY:
        return torch.device("cpu")
    ctypes.CDLL(LIBRARY).gradtune_fake_device()
    module: Any = types.ModuleType("torch.fake")  # torch asks it as it asks torch.cuda
    module.is_available = lambda: True
    module._is_in_bad_fork = lambda: False
    module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.device = lambda index: contextlib.nullcontext()
    module.manual_seed_all = lambda seed: None  # its operators draw the CPU's numbers
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    torch._register_device_module("fake", module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return torch.device("fake", 0)


def use() -> None:
    """From here on tensors are made on the device, and DDP is for tensors there, so that a program need not name it."""
    torch.set_default_device(device())
    made: Any = DistributedDataParallel.__init__

    def make(self: Any, *arguments: Any, process_group: Any = None, **options: Any) -> None:
        made(self, *arguments, process_group=process_group or ddp_group(), **options)

    DistributedDataParallel.__init__ = functools.wraps(made)(make)  # type: ignore[method-assign]
    # A group in Python has no store, so for gradtune the group of such a DDP is the default one.
    checked: Any = gradtune._wrap.check_group
    gradtune._wrap.check_group = lambda group: checked(None if isinstance(group, Staged) else group)


@contextlib.contextmanager
def side_stream() -> Iterator[None]:
    """The body's work is on a stream of its own, behind the work so far; later work waits for it."""
    if is_on_cpu():
        yield
        return
    current, side = torch.accelerator.current_stream(), torch.Stream(device=device())
    side.wait_stream(current)
    with side:
        yield
    current.wait_stream(side)


@contextlib.contextmanager
def slow(us: int) -> Iterator[None]:
    """Each piece of the model's work on the device takes so much longer, while the host asks for it at once."""
    if is_on_cpu():
        yield
        return
    delay = ctypes.CDLL(LIBRARY).gradtune_fake_device_delay
    delay(ctypes.c_int64(us))
    yield
    delay(ctypes.c_int64(0))


def is_on_cpu() -> bool:
    return device().type == "cpu"


_ProcessGroup: Any = dist.ProcessGroup  # torch's types do not know how it is implemented in Python


class Staged(_ProcessGroup):  # type: ignore[misc]
    """A group for tensors of the device: they go over another group through copies on the host, as Gloo does it for CUDA."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group.rank(), group.size())
        self._group: Any = group

    def getGroupName(self) -> str:
        return "staged"

    group_name = property(getGroupName)

    def _over(self, call: str, tensors: list[torch.Tensor], *options: Any) -> dist.Work:
        copies = [tensor.cpu() for tensor in tensors]
        getattr(self._group, call)(copies, *options).wait()
        for tensor, copied in zip(tensors, copies, strict=True):
            tensor.copy_(copied)
        return _ended(tensors)

    def allreduce(self, tensors: Any, *options: Any) -> dist.Work:
        return self._over("allreduce", tensors if isinstance(tensors, list) else [tensors], *options)

    def broadcast(self, tensors: Any, *options: Any) -> dist.Work:
        return self._over("broadcast", tensors if isinstance(tensors, list) else [tensors], *options)

    def allgather(self, outputs: Any, inputs: Any, *_options: Any) -> dist.Work:
        copies = [[tensor.cpu() for tensor in each] for each in outputs]
        self._group.allgather(copies, [tensor.cpu() for tensor in inputs]).wait()
        for tensors, copied in zip(outputs, copies, strict=True):
            for tensor, copy in zip(tensors, copied, strict=True):
                tensor.copy_(copy)
        return _ended(outputs)


def _ended(result: Any) -> dist.Work:
    future: Future[Any] = Future()
    future.set_result(result)
    return _create_work_from_future(future)


@functools.cache
def ddp_group() -> dist.ProcessGroup | None:
    """The group for DistributedDataParallel on the device; None: the default group."""
    group = dist.distributed_c10d._get_default_group()
    return None if is_on_cpu() else Staged(group)
