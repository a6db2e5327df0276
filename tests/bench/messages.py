#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures small collectives of gradtune's communicator beside c10d's own over Gloo, in the same processes, in
alternating blocks.

usage: messages.py [--parts 2x1,2x2,2x1-25ms,2x2-25ms] BUILD_FOLDER OUT.json

It runs on 2 x 1 ranks and on 2 x 2, also over a link of 25 ms one way. If the machine has no more cores than ranks, each rank has one core for all of
its threads, like a rank whose other cores compute. Results are the median of a block, and the 90th percentile of its
times. A message of 512 bytes takes the time of waking a few threads, some tens of microseconds each.
"""
import json
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import Bench, flags_of_parts, row, save  # noqa: E402

RATE = "1gbit"


def p90(values):
    return sorted(values)[int(0.9 * len(values))]


def measure(bench, program, part, rows):
    out = bench.folder / "messages.json"
    shape, _, delay = part.partition("-")
    launcher = bench.launcher(f"{RATE}-{delay}" if delay else RATE, ranks_per_node=int(shape[-1]))
    bench.launch(launcher, [program, out, str(1000 * float(delay.removesuffix("ms") or 0))])
    for entry in json.loads(out.read_text(encoding="utf-8")):
        name = f"{part}: {entry['kind']}, {entry['bytes']} bytes, {entry['at_once']} at once"
        for what, of in (("median", statistics.median), ("90th percentile", p90)):
            ours, theirs = [[of(block) for block in entry[key]] for key in ("gradtune_us", "c10d_us")]
            row(rows, f"{name}, {what} / c10d", statistics.median(ours), statistics.median(theirs),
                [a / b for a, b in zip(ours, theirs)], None, "us")


def main():
    flags = flags_of_parts(__doc__, ["2x1", "2x2", "2x1-25ms", "2x2-25ms"])
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(flags.build, folder)
        for part in flags.parts:
            measure(bench, flags.build / "tests" / "bench" / "message_rank", part, flags.rows)
            save(flags.out, flags.rows)


if __name__ == "__main__":
    main()
