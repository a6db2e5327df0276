#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Compares gradtune's choice with everything that could be chosen by hand, over models, ranks, links and fidelities.

usage: matrix.py [--cells WORDS] [--minutes 60] [--seconds 150] BUILD_FOLDER OUT.json

A cell is one job on one shaped network (as root), and a row of OUT.json. A call runs the cells that are missing, and then
those that are oldest, until the minutes are over; so several calls fill the matrix. Without OUT.json it goes on from the
newest matrix in tests/bench/results. --cells takes words, separated by commas: a cell whose name has all of them runs.
OUT.html is a page of all rows. OUT.journals has the journal of each cell, for `gradtune report` and `gradtune explain`.

In a cell gradtune first tunes with default options. Then these train by turns in the same processes, --seconds in all:
- PyTorch DDP with its best bucket size of four: fp32, the fp16 and bf16 hooks, and PowerSGD of rank 1, 4 and 16
- the committed strategy, pinned
- the fastest three of other pinned strategies. These are the journal's within a quarter of the fastest, and their programs
  with each tensor alone, in buckets of 1 and 8 MiB, and in one bucket. Each is tried for four steps, while the time
  lasts, but at least three of them
- a rank that computes alone

A cell of the C++ front tunes in C++, and runs the committed strategy, the three others and the fastest DDP in fresh
processes, which take turns.

A row: `value` is the committed step and `anchor` the fastest other pinned one (ms), `ratio` the median of their ratios in a
turn. `ddp` is the fastest way of DDP that is known to be as accurate as the fidelity allows, with its ratio. `alone_ms` is
the step without communication, `tuning_share` the time that tuning cost, of its steps under the baseline, and `predicted`
the committed step as the model predicted it, divided by the measured one.
"""
import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.matrix_page import GOAL, page, summary  # noqa: E402
from support.shaped import ROOT, Bench, decided_values, row, save  # noqa: E402

RANK = ROOT / "tests" / "bench" / "support" / "matrix_rank.py"
# The examples that train the same models in C++.
PROGRAMS = {"mlp": ("train_fashion_mnist", "--model", "mlp-small"), "mixed": ("train_fashion_mnist", "--model", "large-first"),
            "transformer": ("train_text",)}
TUNING = 420  # steps of a C++ job; longer than the tuning budget of 400
PINNED_STEPS, WARM_UP, ROUNDS = 30, 8, 3  # of a C++ job
DECIDED = {"commit", "keep baseline", "keep committed"}
# Ways of DDP that lose no more accuracy than a fidelity allows: results/README.md, "accuracy" and "vs_ddp".
SOUND = {"exact": ("DDP fp32", "DDP fp32, sparse")}
SOUND["half"] = (*SOUND["exact"], "DDP fp16", "DDP bf16")
SOUND["lossy"] = SOUND["half"]
SOUND_POWERSGD = {"mlp": ("DDP powersgd4", "DDP powersgd16"), "mixed": ("DDP powersgd4", "DDP powersgd16"),
                  "resnet": ("DDP powersgd16",), "lstm-sparse": ("DDP powersgd16",)}

CELLS = """
mlp          2x1 100mbit      half   python      mlp          2x1 1gbit        half   cpp
mlp          2x1 200mbit-10ms exact  python      mlp          2x1 none         exact  python
mlp          2x2 100mbit      half   python      mlp          4x1 200mbit      lossy  python
resnet       2x1 100mbit      lossy  python      resnet       2x1 200mbit      half   python
resnet       2x1 1gbit        half   python      resnet       2x1 1gbit        lossy  python
resnet       2x1 200mbit-10ms lossy  python      resnet       2x1 none         half   python
resnet       2x2 200mbit      lossy  python      resnet       4x1 1gbit        half   python
transformer  2x1 100mbit      lossy  python      transformer  2x1 200mbit      exact  python
transformer  2x1 200mbit      half   python      transformer  2x1 200mbit      lossy  python
transformer  2x1 1gbit        half   python      transformer  2x1 1gbit        lossy  python
transformer  2x1 none         exact  python      transformer  2x1 200mbit-10ms lossy  python
transformer  2x1 1gbit-10ms   half   python      transformer  2x1 200mbit      lossy  cpp
transformer  2x1 1gbit        half   cpp         transformer  2x1 200mbit-10ms half   cpp
transformer  4x1 200mbit      half   python      transformer  4x1 1gbit        lossy  python
transformer  2x2 200mbit      half   python      transformer  2x2 200mbit-10ms lossy  python
lstm-sparse  2x1 200mbit      exact  python      lstm-sparse  2x1 1gbit        exact  python
lstm-sparse  2x1 1gbit        half   python      lstm-sparse  2x1 200mbit      lossy  python
lstm-sparse  4x1 1gbit        exact  python      lstm-sparse  2x2 200mbit      half   python
mixed        2x1 100mbit      lossy  python      mixed        2x1 200mbit      exact  python
mixed        2x1 200mbit      half   python      mixed        2x1 200mbit      lossy  python
mixed        2x1 1gbit        half   python      mixed        2x1 1gbit        lossy  python
mixed        2x1 1gbit-10ms   lossy  python      mixed        2x1 200mbit      lossy  cpp
mixed        2x1 1gbit        half   cpp         mixed        4x1 1gbit        half   python
mixed        2x2 1gbit        lossy  python      small        2x1 200mbit      half   python
small        2x1 1gbit        half   python      small        2x1 200mbit-10ms half   python
small        2x1 none         exact  python      small        4x1 200mbit      half   python
transformer  2x1 200mbit-10ms..15ms half python  mixed        2x1 1gbit-2ms..6ms lossy python
"""


@dataclass(frozen=True)
class Cell:
    model: str
    ranks: str
    """Nodes x ranks of a node."""
    link: str
    """A rate, or a rate and the delay of one way, which may be a range: the delay wanders in it."""
    fidelity: str
    front: str

    @property
    def name(self):
        return f"{self.model}, {self.ranks}, {self.link}, {self.fidelity}, {self.front}"


def all_cells():
    words = CELLS.split()
    return [Cell(*words[at:at + 5]) for at in range(0, len(words), 5)]


class MatrixBench(Bench):
    def __init__(self, build, folder, cell, seconds):
        super().__init__(build, folder)
        self.cell, self.seconds = cell, seconds
        nodes, ranks = (int(word) for word in cell.ranks.split("x"))
        self.shape = ["timeout", "--kill-after=30", str(3 * seconds + 60), *self.launcher(cell.link, (), nodes, ranks)]
        self.journal, self.strategy = self.folder / "journal.jsonl", self.folder / "committed.json"

    def python(self, seconds, tune, ways):
        """The report of matrix_rank.py."""
        task, report = self.folder / "task.json", self.folder / "report.json"
        task.write_text(json.dumps({
            "model": self.cell.model, "fidelity": self.cell.fidelity, "seconds": seconds, "tune": tune, "ways": ways,
            "journal": str(self.journal), "strategy": str(self.strategy)}), encoding="utf-8")
        self.launch(self.shape, [sys.executable, "-B", RANK, task, report])
        return json.loads(report.read_text(encoding="utf-8"))

    def cpp(self, steps, flags, environment=None):
        """The median step of the example in ms."""
        program, *model = PROGRAMS[self.cell.model]
        report = self.folder / "report.json"
        self.launch(self.shape, [self.program.with_name(program), *model, "--steps", steps, "--no-eval", "--fidelity",
                                 self.cell.fidelity, "--report", report, *flags], environment)
        steps = json.loads(report.read_text(encoding="utf-8"))["steps"]
        return statistics.median(step["ms"] for step in steps[WARM_UP:])

    def cpp_pinned(self, file):
        return self.cpp(PINNED_STEPS, ["--strategy", file], {"GRADTUNE_TUNING_BUDGET": "0", "GRADTUNE_LOSSY_AFTER": "0"})

    def measure(self):
        """Medians of the turns of each way, in ms, and the report of the Python job."""
        if self.cell.front == "python":
            report = self.python(self.seconds, tune=True, ways="all")
            return report["medians"], report
        self.cpp(TUNING, ["--journal", self.journal, "--export", self.strategy])
        report = self.python(self.seconds // 2, tune=False, ways="all")
        known = report["medians"]
        ddp = fastest_ddp(known, self.cell)
        medians = {name: turns for name, turns in known.items() if name.startswith("DDP") or name == "alone"}
        medians = {**medians, ddp: [], "committed": [], **{label: [] for label in report["files"]}}
        for _ in range(ROUNDS):
            medians["committed"].append(self.cpp_pinned(self.strategy))
            for label, file in report["files"].items():
                medians[label].append(self.cpp_pinned(file))
            medians[ddp].append(statistics.median(self.python(5, tune=False, ways=[ddp])["medians"][ddp]))
        return medians, report


def fastest_ddp(medians, cell):
    sound = SOUND[cell.fidelity] + (SOUND_POWERSGD.get(cell.model, ()) if cell.fidelity == "lossy" else ())
    return min((name for name in medians if name in sound), key=lambda name: statistics.median(medians[name]))


def spread(numerators, denominators):
    """The median and the quartiles of the ratios of turns."""
    ratios = sorted(a / b for a, b in zip(numerators, denominators))
    return statistics.median(ratios), [ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]]


def told(journal, strategy):
    """Figures of tuning: its share of cost, its steps, and the predicted step of the committed strategy."""
    entries = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    decided = {entry["what"]: entry["value"] for entry in entries if entry.get("kind") == "decision"}
    if not decided.keys() & DECIDED:
        raise RuntimeError("tuning had not decided when its time was over: give it more --seconds")
    label = json.loads(strategy.read_text(encoding="utf-8"))["label"]
    steps, baseline = decided.get("tuning steps"), decided.get("baseline took")
    share = decided["tuning cost"] / (steps * baseline) if steps and baseline else None
    return {"strategy": label, "committed": "commit" in decided, "tuning_steps": steps, "tuning_share": share,
            "predicted_ms": decided_values(entries, "predict").get(label)}


def measure(build, cell, seconds, rows, journals):
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bench = MatrixBench(build, folder, cell, seconds)
        medians, report = bench.measure()
        journals.mkdir(parents=True, exist_ok=True)
        shutil.copy(bench.journal, journals / f"{cell.name.replace(', ', '-')}.jsonl")
        facts = told(bench.journal, bench.strategy)
    value = {name: statistics.median(turns) for name, turns in medians.items()}
    best = min(report["files"], key=value.get)
    ddp = fastest_ddp(medians, cell)
    rows[:] = [entry for entry in rows if entry["name"] != cell.name]
    row(rows, cell.name, value["committed"], value[best], [a / b for a, b in zip(medians["committed"], medians[best])], GOAL)
    ratio, quartiles = spread(medians["committed"], medians[ddp])
    predicted = facts.pop("predicted_ms")
    rows[-1].update({
        "spread": spread(medians["committed"], medians[best])[1], "best": best, "tried": report["tried"], **facts,
        "ddp": ddp, "ddp_ratio": ratio, "ddp_spread": quartiles, "alone_ms": value["alone"],
        "predicted": predicted / value["committed"] if predicted else None, "turns": len(medians["committed"]),
        "ms": value, "date": time.strftime("%Y-%m-%d"), "seconds": round(time.monotonic() - began)})


def cells_to_run(wanted, rows):
    """Missing cells first, then the oldest; models take turns."""
    dates = {entry["name"]: entry["date"] for entry in rows}
    cells = [cell for cell in all_cells() if all(word in cell.name for word in wanted)]
    of_model = {cell: sum(other.model == cell.model for other in cells[:at]) for at, cell in enumerate(cells)}
    return sorted(cells, key=lambda cell: (dates.get(cell.name, ""), of_model[cell]))


def earlier_rows(out):
    """The rows of OUT.json, or of the newest committed matrix."""
    known = [out] if out.exists() else sorted((ROOT / "tests" / "bench" / "results").glob("*-matrix-*.json"))[-1:]
    return json.loads(known[0].read_text(encoding="utf-8"))["rows"] if known else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", default="")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seconds", type=int, default=150)
    flags = parser.parse_args()
    rows, until = earlier_rows(flags.out), time.monotonic() + 60 * flags.minutes
    cells = cells_to_run([word for word in flags.cells.split(",") if word], rows)
    if not cells:
        parser.error(f"--cells {flags.cells}: no cell has these words")
    for cell in cells:
        if time.monotonic() > until:
            break
        try:
            measure(flags.build.resolve(), cell, flags.seconds, rows, flags.out.with_suffix(".journals"))
        except RuntimeError as error:
            print(f"{cell.name}: no row, as {error}", file=sys.stderr, flush=True)
        save(flags.out, rows)
        flags.out.with_suffix(".html").write_text(page(rows), encoding="utf-8")
    print(summary(rows), flush=True)


if __name__ == "__main__":
    main()
