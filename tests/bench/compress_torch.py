#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures PyTorch beside the compressors of a CUDA device, on the same GPU.

usage: compress_torch.py COMPRESS_DEVICE.json OUT.json

COMPRESS_DEVICE.json is the output of bench_compress_device in this run on this machine. Rows, at each of its sizes:
- topk: the largest 2 % of elements: torch.topk of magnitudes and the values there
- int8: 8-bit integers with a scale for each 256 elements and error feedback, op by op and by torch.compile

The value is gradtune's median milliseconds for an encode, its anchor PyTorch's; the spread is that of PyTorch's
rounds. Goal: topk in half of the time.
"""
import functools
import json
import statistics
import sys
from pathlib import Path

import torch

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import row, save  # noqa: E402

ROUNDS = 15
GOAL_TOPK = 0.5


def ms_of(call):
    """Milliseconds of a call on the device, from several consecutive calls, for each round."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(repeats):
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / repeats

    timed(1)
    repeats = max(1, min(200, int(2 / timed(3))))
    return [timed(repeats) for _ in range(ROUNDS)]


def topk(gradient, residual):
    corrected = gradient + residual
    places = torch.topk(corrected.abs(), max(1, corrected.numel() // 50), sorted=False).indices
    values = corrected[places]
    corrected[places] = 0
    return places, values, corrected


def int8(gradient, residual):
    corrected = (gradient + residual).view(-1, 256)
    scale = corrected.abs().amax(1, keepdim=True) / 127
    codes = (corrected / scale).round().to(torch.int8)
    return codes, scale, corrected - codes * scale


def compare(measured, rows):
    ours = {entry["name"]: entry["ms"] for entry in measured["rows"] if "ms" in entry}
    sizes = sorted({int(name.split("/")[2]) for name in ours if name.startswith("int8")})
    calls = (("torch.topk", topk, "topk:", GOAL_TOPK), ("torch int8", int8, "int8:", None),
             ("torch.compile int8", torch.compile(int8), "int8:", None))
    for n in sizes:
        generator = torch.Generator("cuda").manual_seed(1)
        gradient, residual = (torch.randn(n, device="cuda", generator=generator) for _ in range(2))
        for name, call, prefix, goal in calls:
            ms = next((ms for entry, ms in ours.items() if entry.startswith(prefix) and entry.endswith(f"/encode_feedback/{n}")),
                      None)
            if ms is not None:
                times = ms_of(functools.partial(call, gradient, residual))
                row(rows, f"{name}/{n}", ms, statistics.median(times), [ms / each for each in times], goal)


def main():
    rows = []
    compare(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), rows)
    save(Path(sys.argv[2]), rows)


if __name__ == "__main__":
    main()
