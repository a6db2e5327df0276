# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests the benchmark "matrix" without running jobs: its cells, the strategies written by hand, its rows and its page."""
import contextlib
import html.parser
import io
import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import matrix
from support.matrix_page import colour, page, summary
from support.matrix_plans import CAPS, by_hand, loses, raced, sizes_of, small_tensors
from support.shaped import measured_ms, plans

JOURNAL = Path(__file__).resolve().parents[1] / "golden" / "journals" / "half_1gbit.jsonl"
ENTRIES = [json.loads(line) for line in JOURNAL.read_text(encoding="utf-8").splitlines()]
TURNS = {"alone": [50.0, 50.0, 50.0], "DDP fp32": [100.0, 104.0, 98.0], "DDP fp16": [90.0, 91.0, 89.0],
         "DDP powersgd16": [60.0, 60.0, 60.0], "committed": [40.0, 45.0, 41.0], "a": [40.0, 41.0, 42.0], "b": [44.0, 80.0, 46.0]}


def chosen(entries):
    """The strategy in force at the end."""
    return [entry["strategy"] for entry in entries if entry.get("kind") == "plan"][-1]


def measured(cell, turns, rows, journal=JOURNAL):
    """Adds the row of a cell whose job had these turns."""
    strategy = next(entry["strategy"] for entry in ENTRIES if entry.get("kind") == "plan")

    def measure(bench):
        bench.journal.write_text(journal.read_text(encoding="utf-8"), encoding="utf-8")
        bench.strategy.write_text(json.dumps(strategy), encoding="utf-8")
        return turns, {"files": {"a": "1.json", "b": "2.json"}, "tried": 7}

    with mock.patch.object(matrix.MatrixBench, "measure", measure), contextlib.redirect_stdout(io.StringIO()), \
            tempfile.TemporaryDirectory() as journals:
        try:
            matrix.measure(Path("build"), cell, 1, rows, Path(journals))
        finally:  # the journal of a cell without a row is of most interest
            kept = (Path(journals) / f"{cell.name.replace(', ', '-')}.jsonl").read_text(encoding="utf-8")
            assert kept == journal.read_text(encoding="utf-8")
    return rows[-1]


def plan_of_three_tensors(entries):
    return next(plan for label, plan in by_hand(entries, chosen(entries)).items() if label.endswith("each tensor"))


class Plans(unittest.TestCase):
    def test_plans_by_hand_send_each_element_once_in_buckets_of_their_size(self):
        sizes, plans = sizes_of(ENTRIES), by_hand(ENTRIES, chosen(ENTRIES))
        self.assertEqual(0, len(plans) % len(CAPS))
        self.assertGreaterEqual(len(plans), 2 * len(CAPS))
        for plan in plans.values():
            pieces = [piece for bucket in plan["buckets"] for piece in bucket["slices"]]
            self.assertEqual(sizes, {piece["tensor"]: piece["length"] for piece in pieces})
            self.assertEqual(len(sizes), len(pieces))
            self.assertEqual(1, len({bucket["option"] for bucket in plan["buckets"]}))
            self.assertEqual(list(range(len(plan["buckets"]))), [at for at, _ in plan["order"]])

    def test_each_collective_of_a_program_has_its_place_in_the_order(self):
        entries = json.loads(json.dumps(ENTRIES))
        for entry in entries:
            if entry.get("kind") == "plan":
                for bucket in entry["strategy"]["buckets"]:
                    bucket["option"] = "int8: encode@device all_to_all decode@device encode@device all_gather decode@device"
                entry["strategy"]["order"] = [[at, step] for at in range(len(entry["strategy"]["buckets"])) for step in (1, 4)]
        for label, plan in by_hand(entries, chosen(entries)).items():
            buckets = range(len(plan["buckets"]))
            self.assertEqual([[at, step] for at in buckets for step in (1, 4)], sorted(plan["order"]), label)
            for at in buckets:
                self.assertLess(plan["order"].index([at, 1]), plan["order"].index([at, 4]))
        self.assertEqual([[0, 1], [1, 1], [0, 4], [2, 1], [1, 4]], plan_of_three_tensors(entries)["order"][:5])

    def test_a_size_bounds_buckets_of_several_tensors(self):
        counts = {}
        for label, plan in by_hand(ENTRIES, chosen(ENTRIES)).items():
            counts.setdefault(label.rsplit(", ", 1)[1], len(plan["buckets"]))
            for bucket in plan["buckets"]:
                if "8 MiB" in label and len(bucket["slices"]) > 1:
                    self.assertLessEqual(sum(piece["length"] for piece in bucket["slices"]), 1 << 21)
        self.assertEqual((10, 1), (counts["each tensor"], counts["one bucket"]))

    def test_small_tensors_keep_their_program_where_the_other_is_lossy(self):
        entries, lossy = json.loads(json.dumps(ENTRIES)), "int3packed:256: encode@device all_gather decode@device"
        sizes = sizes_of(entries)
        plan = chosen(entries)
        small = small_tensors(plan, sizes)
        self.assertEqual(plan["tensors"][-len(small):], small[::-1])
        self.assertLessEqual(sum(sizes[name] for name in small), 0.005 * sum(sizes.values()))
        plan["buckets"] = [
            {"option": option, "due": "backward", "slices": [{"tensor": name, "offset": 0, "length": sizes[name]} for name in names]}
            for option, names in ((lossy, plan["tensors"][:-len(small)]), ("reduce_scatter all_gather", plan["tensors"][-len(small):]))]
        plan["order"] = [[0, 1], [1, 0], [1, 1]]
        made = by_hand([entry for entry in entries if entry.get("kind") == "table"], plan)
        self.assertEqual({lossy, "reduce_scatter all_gather"}, {label.rpartition(", ")[0].removeprefix("by hand: ") for label in made})
        for label, other in made.items():
            options = {piece["tensor"]: bucket["option"] for bucket in other["buckets"] for piece in bucket["slices"]}
            self.assertEqual({"reduce_scatter all_gather"}, {options[name] for name in small}, label)
            self.assertEqual("int3packed" in label, options[plan["tensors"][0]] == lossy)
            self.assertEqual(sizes, {piece["tensor"]: piece["length"] for bucket in other["buckets"] for piece in bucket["slices"]})
        one = made[f"by hand: {lossy}, one bucket"]
        self.assertEqual([[0, 1], [1, 0], [1, 1]], one["order"])
        self.assertTrue(loses("int8,bf16: encode@device all_to_all decode@device encode@device all_gather decode@device"))
        self.assertFalse(loses("bf16: encode@device all_reduce decode@device") or loses("reduce_scatter all_gather"))

    def test_a_table_of_rows_keeps_its_bucket(self):
        entries = json.loads(json.dumps(ENTRIES))
        for entry in entries:
            if entry.get("kind") == "plan":
                entry["strategy"]["buckets"].insert(0, {
                    "option": "rows: encode@device all_gather decode@device", "due": "backward",
                    "slices": [{"tensor": "9.weight", "offset": 0, "length": 1024 * 2048}]})
                for bucket in entry["strategy"]["buckets"][1:]:
                    bucket["slices"] = [piece for piece in bucket["slices"] if piece["tensor"] != "9.weight"]
        for plan in by_hand(entries, chosen(entries)).values():
            alone = [bucket for bucket in plan["buckets"] if bucket["slices"][0]["tensor"] == "9.weight"]
            self.assertEqual(["rows: encode@device all_gather decode@device"], [bucket["option"] for bucket in alone])
            self.assertEqual(1, len(alone[0]["slices"]))
            names = [piece["tensor"] for bucket in plan["buckets"] for piece in bucket["slices"]]
            self.assertEqual(plan["tensors"], names)

    def test_a_baseline_that_was_kept_at_once_has_plans_by_hand_too(self):
        """As where nothing was tried: a gain cannot be expected."""
        baseline = {**plans(ENTRIES)["bf16 all_reduce, 8 buckets"], "label": "bf16 all_reduce baseline"}
        nothing_tried = [entry for entry in ENTRIES if entry.get("kind") not in ("plan", "decision")]
        made = by_hand(nothing_tried, baseline)
        self.assertEqual(len(CAPS) * len({bucket["option"] for bucket in baseline["buckets"]}), len(made))
        self.assertEqual({}, raced(nothing_tried))

    def test_strategies_that_raced_are_near_the_fastest_and_come_first(self):
        times = measured_ms(ENTRIES)
        labels = list(raced(ENTRIES))
        self.assertEqual(min(times, key=times.get), labels[0])
        self.assertTrue(all(times[label] <= 1.25 * min(times.values()) for label in labels))
        self.assertLess(len(labels), len(times))


class Matrix(unittest.TestCase):
    CELL = matrix.Cell("mixed", "2x1", "1gbit", "lossy", "python")

    def test_cells_are_at_least_forty_and_differ(self):
        names = [cell.name for cell in matrix.all_cells()]
        self.assertGreaterEqual(len(set(names)), 40)
        self.assertEqual(len(names), len(set(names)))
        for cell in matrix.all_cells():
            self.assertIn(cell.fidelity, matrix.SOUND)
            self.assertIn(cell.front, ("python", "cpp"))
            self.assertTrue(cell.front == "python" or cell.model in matrix.PROGRAMS, cell.name)

    def test_a_call_goes_on_with_what_is_missing_and_then_with_the_oldest(self):
        cells = matrix.all_cells()
        rows = [{"name": cell.name, "date": f"2026-11-{10 + at % 3}"} for at, cell in enumerate(cells[1:])]
        order = matrix.cells_to_run([], rows)
        self.assertEqual(cells[0], order[0])
        dates = {entry["name"]: entry["date"] for entry in rows}
        self.assertEqual(sorted(dates.values()), [dates[cell.name] for cell in order[1:]])
        self.assertEqual(["lstm-sparse"], list({cell.model for cell in matrix.cells_to_run(["lstm", "half"], rows)}))

    def test_ratios_are_made_inside_a_turn(self):
        entry = measured(self.CELL, TURNS, [])
        self.assertEqual(("a", 41.0, 41.0), (entry["best"], entry["value"], entry["anchor"]))
        self.assertAlmostEqual(1.0, entry["ratio"])  # 1, 45 / 41 and 41 / 42
        self.assertEqual((7, 3), (entry["tried"], entry["turns"]))
        self.assertEqual(217, entry["tuning_steps"])

    def test_ddp_counts_if_it_is_as_accurate(self):
        self.assertEqual("DDP powersgd16", measured(self.CELL, TURNS, [])["ddp"])
        for model, fidelity, way in (("transformer", "lossy", "DDP fp16"), ("mixed", "half", "DDP fp16"),
                                     ("mixed", "exact", "DDP fp32")):
            cell = matrix.Cell(model, "2x1", "1gbit", fidelity, "python")
            self.assertEqual(way, measured(cell, TURNS, [])["ddp"])

    def test_a_new_row_replaces_the_old_one(self):
        rows = []
        measured(self.CELL, TURNS, rows)
        measured(self.CELL, {**TURNS, "committed": [80.0, 80.0, 80.0]}, rows)
        self.assertEqual([80.0], [entry["value"] for entry in rows])

    def test_a_job_that_did_not_decide_has_no_row(self):
        with tempfile.TemporaryDirectory() as folder:
            cut = Path(folder) / "cut.jsonl"
            cut.write_text("\n".join(JOURNAL.read_text(encoding="utf-8").splitlines()[:60]) + "\n", encoding="utf-8")
            with self.assertRaisesRegex(RuntimeError, "had not decided"):
                measured(self.CELL, TURNS, [], cut)


class Page(unittest.TestCase):
    def test_colours(self):
        self.assertEqual(["good", "even", "bad"], [colour(1.02, [1.0, 1.1], 1.02), colour(1.05, [1.01, 1.1], 1.02),
                                                   colour(1.05, [1.03, 1.1], 1.02)])

    def test_the_page_has_a_line_for_each_row_and_escapes_it(self):
        rows = []
        measured(Matrix.CELL, TURNS, rows)
        rows[0]["best"] = "<b>&"
        text = page(rows)
        self.assertIn("&lt;b&gt;&amp;", text)
        self.assertNotIn("<b>", text)
        self.assertNotIn("<script", text)
        self.assertEqual(2, text.count("<tr>"))
        html.parser.HTMLParser().feed(text)

    def test_the_summary_counts_cells(self):
        rows = []
        measured(Matrix.CELL, TURNS, rows)
        measured(matrix.Cell("mixed", "2x1", "none", "exact", "python"), {**TURNS, "committed": [200.0, 210.0, 220.0]}, rows)
        measured(matrix.Cell("mixed", "2x1", "1gbit", "half", "python"), TURNS, rows)
        last = summary(rows).splitlines()[-1]
        self.assertTrue(last.startswith("| all | 3 |"), last)
        self.assertIn("| 2 + 0 |", last)
        self.assertIn("1 of 2 |", last)  # at lossy, DDP takes less than 1.3 times computation alone


if __name__ == "__main__":
    unittest.main()
