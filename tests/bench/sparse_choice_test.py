# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests the evaluation of the benchmark "sparse_choice": its cells, the best scheme, and the share of bad choices."""
import contextlib
import io
import unittest

import sparse_choice


def report_of(chosen, blocks_ms):
    return {"chosen": chosen, "blocks_ms": blocks_ms, "label": "auto 1: rows, 1 bucket", "decided": True, "tuning": 90,
            "predicted_ms": 10.5, "of_one": 0.01, "of_all": 0.03, "overlap": 0.5}


def add_cell(rows, name, chosen, blocks_ms):
    with contextlib.redirect_stdout(io.StringIO()):
        sparse_choice.add_cell(rows, name, report_of(chosen, blocks_ms))
        sparse_choice.add_summary(rows)


GOOD = {"rows gather": [10.0, 12.0, 11.0], "rows two_step": [11.0, 13.0, 12.0], "all_reduce": [90.0]}


class SparseChoice(unittest.TestCase):
    def test_cells_are_all_combinations(self):
        flags = sparse_choice.flags_of(["--ranks", "2,8", "--densities", "0.01,50", "--rates", "1gbit,200mbit", "b", "o"])
        self.assertEqual(2 * 2 * 3 * 2, len(set(flags.cells)))
        self.assertIn((8, "0.01", "0.9", "200mbit"), flags.cells)
        self.assertEqual(45, len(sparse_choice.flags_of(["b", "o"]).cells))

    def test_the_best_ran_in_all_rounds(self):
        self.assertEqual({"a": 2.0}, sparse_choice.medians({"a": [1.0, 3.0, 2.0], "b": [0.5]}))

    def test_ratios_are_made_inside_a_round(self):
        rows = []
        add_cell(rows, "2 ranks", "rows two_step", GOOD)
        cell = rows[0]
        self.assertEqual("2 ranks: rows two_step / rows gather", cell["name"])
        self.assertEqual((12.0, 11.0), (cell["value"], cell["anchor"]))
        self.assertAlmostEqual(12 / 11, cell["ratio"])
        self.assertEqual([13 / 12, 1.1], cell["spread"])
        self.assertFalse(cell["met"])
        self.assertEqual({"rows gather": 11.0, "rows two_step": 12.0, "all_reduce": 90.0}, cell["ms"])

    def test_what_is_not_pinned_is_no_best(self):
        rows = []
        add_cell(rows, "2 ranks", "auto", {**GOOD, "auto": [9.0, 9.0, 9.0]})
        self.assertEqual("2 ranks: auto / rows gather", rows[0]["name"])
        self.assertLess(rows[0]["ratio"], 1)
        self.assertTrue(rows[0]["met"])

    def test_the_summary_counts_cells_that_are_too_slow(self):
        rows = []
        for number in range(19):
            add_cell(rows, f"{number} ranks", "rows gather", GOOD)
        add_cell(rows, "19 ranks", "rows two_step", GOOD)
        summary = rows[-1]
        self.assertEqual("all cells: more than 3 % off, of 20", summary["name"])
        self.assertEqual((5.0, True), (summary["value"], summary["met"]))
        add_cell(rows, "18 ranks", "rows two_step", GOOD)
        self.assertEqual(21, len(rows), "measured again")
        self.assertEqual((10.0, False), (rows[-1]["value"], rows[-1]["met"]))

    def test_a_cell_that_begins_alike_is_another(self):
        rows = []
        for name in ("2 ranks, 1 %, overlap 0.5, 1gbit", "2 ranks, 10 %, overlap 0.5, 1gbit"):
            add_cell(rows, name, "rows gather", GOOD)
        self.assertEqual(3, len(rows))


if __name__ == "__main__":
    unittest.main()
