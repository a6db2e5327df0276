# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The device that tests train on: the CPU, a GPU, or the device without hardware of the C++ tests (tests/hooks/fake_device.h).

The variable TEST_DEVICE is "cuda", or names the library of the device without hardware; ctest has a second entry with it
for each program that trains on a device. Its name in torch is "fake". It has streams, events, pinned memory and autocast,
and the CPU's operators, whose results appear later. With "cuda" all ranks share one GPU, and TEST_BACKEND, "gloo" or
"nccl", carries its tensors (ranks.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import functools
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import gradtune.replicas
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_process_group, _unregister_process_group

import ranks

LIBRARY = os.environ["TEST_DEVICE"] if ranks.DEVICE == "fake" else ""
REPLICAS = "gradtune_on_host" if LIBRARY else "gradtune"  # the backend for the replicas of FSDP2
CYCLES_A_US = 2_000  # of a GPU


@functools.cache
def device() -> torch.device:
    """The device to train on. It has to be known before the first backward pass."""
    if not LIBRARY:
        return torch.device("cuda", 0) if ranks.DEVICE == "cuda" else torch.device("cpu")
    ctypes.CDLL(LIBRARY).gradtune_fake_device()
    module: Any = types.ModuleType("torch.fake")  # torch asks it as it asks torch.cuda
    module.is_available = lambda: True
    module._is_in_bad_fork = lambda: False
    module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.device = lambda index: contextlib.nullcontext()
    module.set_device = lambda index: None
    module.Stream = lambda priority=0: torch.Stream(device="fake")
    module.Event = lambda **options: torch.Event("fake", **options)
    module.current_stream = lambda device=None: torch.accelerator.current_stream()
    module.stream = lambda stream: stream or contextlib.nullcontext()
    module.manual_seed_all = lambda seed: None  # its operators draw the CPU's numbers
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    torch._register_device_module("fake", module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return torch.device("fake", 0)


def use() -> None:
    """From here on tensors are made on the device, and groups carry them, so that a program need not name it."""
    torch.set_default_device(device())
    if not LIBRARY:
        torch.use_deterministic_algorithms(True, warn_only=True)
        _carry_by(lambda backend: f"cpu:{backend},cuda:{ranks.BACKEND}")
        return
    dist.Backend.register_backend("host", _collectives, devices=["fake"])
    dist.Backend.register_backend(REPLICAS, _replicas, extended_api=True, devices=["fake"])
    _carry_by(lambda backend: f"cpu:{backend},fake:host")


def _carry_by(backends: Callable[[str], str]) -> None:
    """Process groups that a program makes with one backend have these."""
    made: Any = dist.init_process_group

    def make(backend: str, **options: Any) -> None:
        made(backends(backend), **options)

    dist.init_process_group = functools.wraps(made)(make)


def _new_group(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> dist.ProcessGroup:
    """A group for the CPU and for the device, over Gloo on the host."""
    kind = dist.ProcessGroup.BackendType
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(kind.GLOO)
    group._register_backend(torch.device("cpu"), kind.GLOO, dist.ProcessGroupGloo(store, rank, size, timeout))
    name = f"host {id(group)}"
    _register_process_group(name, group)
    ctypes.CDLL(LIBRARY).gradtune_fake_device_collectives(name.encode())
    _unregister_process_group(name)
    return group


def _collectives(*place: Any) -> Any:
    return _new_group(*place)._get_backend(device())


def _replicas(options: Any, _backend_options: Any) -> Any:
    group = _new_group(options.store, options.group_rank, options.group_size, options.timeout)
    return gradtune.replicas.ReplicaGroup(group, speaks=0 in options.global_ranks_in_group)


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
def slow(us: int, stream: int = 0) -> Iterator[None]:
    """Each piece of work on a stream takes so much longer, while the host asks for it at once. The model's stream is 0.

    On a GPU the work so far takes 50 times as much longer instead.
    """
    if is_on_cpu():
        yield
        return
    if not LIBRARY:
        with torch.cuda.stream(torch.cuda.Stream(device(), stream_id=stream, device_index=0, device_type=1)):
            torch.cuda._sleep(50 * us * CYCLES_A_US)
        yield
        return
    delay = ctypes.CDLL(LIBRARY).gradtune_fake_device_delay
    delay(ctypes.c_int64(stream), ctypes.c_int64(us))
    yield
    delay(ctypes.c_int64(stream), ctypes.c_int64(0))


def is_on_cpu() -> bool:
    return device().type == "cpu"
