#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures compressors beside the equivalents in PyTorch (whose int8 is FBGEMM's) and NumPy, in turn, on all cores.

usage: compress_peers.py [--rounds 3] BUILD_FOLDER OUT.json

There are 2^26 elements. Peers do a part of a compressor's work: they write no header, feed no error back and, for
top-k, do not write the residual. Values are ms of one encode without error feedback.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

import numpy  # noqa: E402
import torch  # noqa: E402
from support.shaped import row, save  # noqa: E402

N = 1 << 26


def peers(x):
    """For each of our compressors: the peer's name, its work, and the goal of our time relative to it."""
    k = N // 100
    half, bfloat = torch.empty(N, dtype=torch.half), torch.empty(N, dtype=torch.bfloat16)
    array = x.numpy()
    blocks = x.view(-1, 256)

    def int8_blocks():
        scale = blocks.abs().amax(1, keepdim=True) / 127
        return torch.round(blocks / scale).to(torch.int8), scale

    return {
        "topk:0.01": [("torch.topk of |x|", lambda: torch.topk(x.abs(), k, sorted=False), 0.2),
                 ("numpy.argpartition of |x|", lambda: numpy.argpartition(numpy.abs(array), N - k), 0.2)],
        "fp16": [("torch copy to half", lambda: half.copy_(x), None)],
        "bf16": [("torch copy to bfloat16", lambda: bfloat.copy_(x), None)],
        "int8": [("torch, blocks of 256", int8_blocks, None),
                 ("FBGEMM quantize_per_tensor, scale known", lambda: torch.quantize_per_tensor(x, 0.01, 0, torch.qint8),
                  None)],
        "signsgd": [("numpy.packbits of signbit", lambda: numpy.packbits(numpy.signbit(array)), None)],
    }


def ms_of(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def ours(build, names):
    """Medians of our own benchmark, by compressor."""
    out = build / "bench" / "compress_peers_ours.json"
    cores = len(os.sched_getaffinity(0))
    flags = ["--compressors", ",".join(names), "--sizes", N, "--operations", "encode", "--cores", cores]
    program = build / "tests" / "bench" / "bench_compress_host"
    subprocess.run([str(word) for word in [program, *flags, build, out]], check=True, stdout=subprocess.DEVNULL)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    return {name: entry["ms"] for name, entry in zip(names, rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    torch.manual_seed(1)
    table = peers(torch.randn(N))
    times = {}
    for _ in range(flags.rounds):
        for name, ms in ours(flags.build, list(table)).items():
            times.setdefault(name, []).append(ms)
            for peer, call, _ in table[name]:
                call()
                times.setdefault(peer, []).append(statistics.median(ms_of(call) for _ in range(5)))
    rows = []
    for name, all_peers in table.items():
        for peer, _, goal in all_peers:
            ratios = [a / b for a, b in zip(times[name], times[peer])]
            row(rows, f"{name} / {peer}", statistics.median(times[name]), statistics.median(times[peer]), ratios, goal)
    save(flags.out, rows)


if __name__ == "__main__":
    main()
