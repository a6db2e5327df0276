# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m gradtune doctor`: says what gradtune finds on this machine, and in a torchrun call probes the link.

The probe is a short training of a small model with gradtune itself, which writes a journal. The program gradtune fits
its cost model to that journal, and replays a job of the wanted size with it. So there is one cost model, and one way
in which the link is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import math
import os
import platform
import re
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from . import _probe
from ._errors import Error
from ._load import VERSION
from ._program import program

_MOST_PARAMETERS = 10**12
_MOST_COMPUTE_MS = 1e7


def main(arguments: Sequence[str]) -> int:
    """Prints what it finds; returns 0, or 1 if the probe failed. A wrong command line ends the program with status 2."""
    given = _parser().parse_args(arguments)
    rank = _number("RANK", 0)
    try:
        if rank == 0:
            _print(_facts())
        _probe_link(given)
    except (Error, RuntimeError, OSError, ValueError) as error:
        text = str(error).strip().partition("\n")[0].removeprefix("gradtune: ")
        print(f"gradtune: doctor on rank {rank}: {text}", file=sys.stderr, flush=True)
        return 1
    return 0


def _probe_link(given: argparse.Namespace) -> None:
    ranks = _number("WORLD_SIZE", 1)
    if ranks < 2:
        _print(
            [
                "link: not probed, as this is one rank. Between two machines: "
                "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m gradtune doctor"
            ]
        )
        return
    lines = _probe.run(_probe.Job(given.shapes or _probe.transformer(given.parameters), given.compute_ms, given.trace))
    if _number("RANK", 0) == 0:
        _print(lines)


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradtune doctor",
        description="Says what gradtune finds on this machine. On each rank of a torchrun call it also probes the link "
        f"between the ranks, in {_probe.LIMIT_S} s at most, and predicts steps of a model.",
    )
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "--parameters",
        type=_parameters,
        default=25_000_000,
        metavar="N",
        help="predict steps of a transformer with N parameters, such as 124M or 1.5B (default 25M)",
    )
    model.add_argument(
        "--shapes",
        type=_shapes,
        metavar="AxB,C,...",
        help="... of a model whose parameters have these shapes, from the first layer on, such as 64x3x3x3,64,10x64,10",
    )
    model.add_argument("--trace", metavar="FILE", help="... of the job of this file, which `gradtune trace` made")
    parser.add_argument(
        "--compute-ms",
        type=_milliseconds,
        default=0.0,
        metavar="MS",
        help="time of its step on one rank without communication, a third of it forward (default 0: communication alone)",
    )
    return parser


def _parameters(text: str) -> int:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMB]?)", text, re.I)
    number = float(found[1]) * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9}[found[2].upper()] if found else 0
    if not 1000 <= number <= _MOST_PARAMETERS:
        raise argparse.ArgumentTypeError(
            f'"{text}" is not allowed; allowed is a number from 1000 to 1e12, such as 25M or 1.5B'
        )
    return int(number)


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    if not re.fullmatch(r"[1-9][0-9]*([x,][1-9][0-9]*)*", text):
        raise argparse.ArgumentTypeError(
            f'"{text}" is not allowed; allowed are shapes of positive sizes, such as 64x3x3x3,64,10x64,10'
        )
    shapes = tuple(tuple(int(size) for size in shape.split("x")) for shape in text.split(","))
    if not sum(math.prod(shape) for shape in shapes) <= _MOST_PARAMETERS:
        raise argparse.ArgumentTypeError("these shapes have more than 1e12 parameters")
    return shapes


def _milliseconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= _MOST_COMPUTE_MS:
        raise argparse.ArgumentTypeError(f'"{text}" is not allowed; allowed are milliseconds from 0 to 1e7')
    return number


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, str(otherwise))
    if not text.isdecimal():
        raise Error(f'gradtune: {name} is "{text}"; allowed is a number, as torchrun sets it')
    return int(text)


# --- this machine ----------------------------------------------------------------------------------------------------


def _facts() -> list[str]:
    own = program()
    return [
        f"gradtune {VERSION}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {len(os.sched_getaffinity(0))} cores for this process",
        f"program gradtune: {own or 'none; it is built where CLI11 is (Debian: libcli11-dev)'}",
        f"backends of torch: {', '.join(_backends()) or 'none'}",
        f"devices: {', '.join(_devices()) or 'the CPU alone'}",
        f"NCCL (option collectives=nccl): {_nccl()}",
        f"interfaces: {', '.join(_interfaces())}",
        f"name of this host: {_own_address()}",
        f"variables: {', '.join(_variables()) or 'none of gradtune or Gloo'}",
    ]


def _backends() -> list[str]:
    known = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
        "ucc": dist.is_ucc_available(),
    }
    return [name for name, is_there in known.items() if is_there]


def _devices() -> list[str]:
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _nccl() -> str:
    name = os.environ.get("GRADTUNE_NCCL_LIBRARY", "libnccl.so.2")
    try:
        version = ctypes.c_int()
        ctypes.CDLL(name).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return f"{name} can not be loaded; GRADTUNE_NCCL_LIBRARY may name another file"
    number = version.value
    return f"{name}, version {number // 10000}.{number // 100 % 100}.{number % 100}"


def _interfaces() -> list[str]:
    found = []
    for _, name in socket.if_nameindex():
        state = _read(Path("/sys/class/net") / name / "operstate")
        address = _address_of(name)
        if address or state == "up":
            speed = _read(Path("/sys/class/net") / name / "speed")
            rate = f", {speed} Mbit/s" if speed.isdecimal() else ""
            found.append(f"{name} ({address or 'no IPv4 address'}{rate})")
    return found


def _address_of(interface: str) -> str:
    request = struct.pack("256s", interface.encode()[:15])
    siocgifaddr = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        return socket.inet_ntoa(fcntl.ioctl(asking.fileno(), siocgifaddr, request)[20:24])
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _own_address() -> str:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        return f"{name}, which has no address ({error}): set GLOO_SOCKET_IFNAME to the interface between the machines"
    if address.startswith("127.") and "GLOO_SOCKET_IFNAME" not in os.environ:
        return f"{name} at {address}, a loopback address: between machines set GLOO_SOCKET_IFNAME to an interface"
    return f"{name} at {address}"


def _variables() -> list[str]:
    ours = ("GRADTUNE_", "GLOO_", "NCCL_SOCKET", "NCCL_IB")
    return [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(ours)]
