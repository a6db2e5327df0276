#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch beside the compressors of a CUDA device, on the same GPU.

usage: compress_torch.py COMPRESS_DEVICE.json OUT.json

COMPRESS_DEVICE.json is what bench_compress_device wrote in this run on this machine. Rows, at each of its sizes:
  topk    the 1 % largest elements: torch.topk of magnitudes and the values there
  int8    8-bit integers with a scale for each 256 elements and error feedback, op by op and by torch.compile
The value is gradtune's milliseconds for an encode, its anchor PyTorch's. Goal: topk in half of the time.
"""
import datetime
import json
import statistics
import sys
from pathlib import Path

import torch

ROUNDS = 15
GOAL_TOPK = 0.5


def ms_of(call):
    """The median milliseconds of a call on the device, of several that follow each other."""
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
    return statistics.median(timed(repeats) for _ in range(ROUNDS))


def topk(gradient, residual):
    corrected = gradient + residual
    places = torch.topk(corrected.abs(), max(1, corrected.numel() // 100), sorted=False).indices
    values = corrected[places]
    corrected[places] = 0
    return places, values, corrected


def int8(gradient, residual):
    corrected = (gradient + residual).view(-1, 256)
    scale = corrected.abs().amax(1, keepdim=True) / 127
    codes = (corrected / scale).round().to(torch.int8)
    return codes, scale, corrected - codes * scale


def rows_of(measured):
    ours = {row["name"]: row["ms"] for row in measured["rows"] if "ms" in row}
    sizes = sorted({int(name.split("/")[2]) for name in ours if name.startswith("int8")})
    compiled = torch.compile(int8)
    for n in sizes:
        generator = torch.Generator("cuda").manual_seed(1)
        gradient, residual = (torch.randn(n, device="cuda", generator=generator) for _ in range(2))
        for name, call, prefix, goal in (("torch.topk", topk, "topk:", GOAL_TOPK), ("torch int8", int8, "int8", None),
                                         ("torch.compile int8", compiled, "int8", None)):
            ms = next((ms for row, ms in ours.items() if row.startswith(prefix) and f"/encode_feedback/{n}" in row), None)
            if ms is None:
                continue
            anchor = ms_of(lambda: call(gradient, residual))  # pylint: disable=cell-var-from-loop
            ratio = ms / anchor
            yield {"name": f"{name}/{n}", "value": ms, "unit": "ms", "anchor": anchor, "ratio": ratio,
                   "spread": [ratio, ratio], "goal": goal, "met": None if goal is None else ratio <= goal}


def main():
    measured = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    rows = []
    for row in rows_of(measured):
        rows.append({key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()})
        print(f"{row['name']:30} {row['value']:9.4f} ms  torch {row['anchor']:9.4f}  ratio {row['ratio']:.3f}", flush=True)
    run = {"date": datetime.date.today().isoformat(), "command": "compress_torch.py", "device": torch.cuda.get_device_name(),
           "torch": torch.__version__}
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{"schema":"gradtune.benchmark/1",\n"run":{json.dumps(run)},\n"rows":[\n{lines}\n]}}\n'
    Path(sys.argv[2]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
