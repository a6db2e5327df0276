# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests the evaluation of trainings in the benchmark "accuracy": intervals, admission, bits sent, and the fastest on
a link."""
import math
import unittest

import accuracy

TEXT, IMAGES = accuracy.Training("text", 2), accuracy.Training("fashion", 2)
PLAN = {"label": "int4:64 gather", "buckets": [
    {"option": "int4:64: encode@device all_gather decode@device", "slices": [{"length": 600}, {"length": 200}]},
    {"option": "all_reduce", "slices": [{"length": 50}]}]}


def runs(metrics, losses=None):
    return [{"metric": metric, "losses": losses or [3 - step / 100 for step in range(200)]} for metric in metrics]


def row_of(training, fp32, ours):
    return accuracy.compare(training, "int4", PLAN, runs(fp32), runs(ours), {"bits": 4.25, "error": 0.1, "ms": 30})


class Accuracy(unittest.TestCase):
    def test_the_interval_is_students(self):
        low, high = accuracy.interval([1.0, 2.0, 3.0, 4.0, 5.0])
        self.assertAlmostEqual(3 - 2.776 * math.sqrt(2.5 / 5), low, 6)
        self.assertAlmostEqual(3 + 2.776 * math.sqrt(2.5 / 5), high, 6)
        self.assertEqual([-math.inf, math.inf], accuracy.interval([1.0]), "one says nothing")

    def test_the_whole_interval_has_to_be_within_the_limit(self):
        fp32 = [6.0, 6.5, 7.0]
        self.assertTrue(row_of(TEXT, fp32, [1.010 * value for value in fp32])["met"])
        self.assertFalse(row_of(TEXT, fp32, [1.021 * value for value in fp32])["met"])
        scattered = row_of(TEXT, fp32, [6.0, 1.03 * 6.5, 7.0])
        self.assertLess(scattered["ratio"], 1.02)
        self.assertFalse(scattered["met"])

    def test_pairs_take_out_what_seeds_share(self):
        row = row_of(TEXT, [5.0, 6.0, 7.0], [5.05, 6.06, 7.07])
        self.assertAlmostEqual(1.01, row["ratio"])
        self.assertAlmostEqual(1.01, row["spread"][0])
        self.assertAlmostEqual(1.01, row["spread"][1])

    def test_half_a_point_of_accuracy(self):
        self.assertTrue(row_of(IMAGES, [88.0, 89.0], [87.6, 88.6])["met"])
        self.assertFalse(row_of(IMAGES, [88.0, 89.0], [87.4, 88.4])["met"])

    def test_steps_to_the_same_loss(self):
        slow = [3 - step / 200 for step in range(200)]
        row = accuracy.compare(TEXT, "int4", PLAN, runs([6.0, 6.0]), runs([6.0, 6.0], slow), {})
        self.assertEqual(2 / ((50 + 3 * 150 // 4) / 200), row["steps"], "not reached")

    def test_a_longer_training_is_a_row_of_its_own(self):
        longer = accuracy.Training("text", 2, longer=True)
        self.assertEqual("text, 2 ranks: int4", TEXT.row_name("int4"))
        self.assertEqual("text, 2 ranks, 5 times as long: int4", longer.row_name("int4"))
        self.assertEqual((400, 2000), (TEXT.steps(), longer.steps()))

    def test_a_training_that_begins_dense_is_a_row_of_its_own(self):
        dense = accuracy.Training("text", 2, dense_first=0.2)
        self.assertEqual("text, 2 ranks, the first 20% dense: int4", dense.row_name("int4"))
        self.assertEqual("accuracy.py --tasks text --ranks 2 --seeds 5 --compressors int4 --dense-first 0.2",
                         dense.command("int4", 5))
        self.assertEqual("text, 2 ranks, the first 0% dense: powersgd",
                         accuracy.Training("text", 2, dense_first=0).row_name("powersgd"))

    def test_dense_steps_are_those_that_a_compressor_needs_or_what_was_asked_for(self):
        text, images = accuracy.Training("text", 2, longer=True), accuracy.Training("fashion", 2)
        self.assertEqual((80, 0), (text.dense_steps("powersgd"), text.dense_steps("int4")))
        self.assertEqual((0, 46), (images.dense_steps("powersgd:4"), images.dense_steps("dgc")))
        self.assertEqual(0, accuracy.Training("text", 2, dense_first=0).dense_steps("powersgd"))

    def test_bits_are_those_that_were_sent(self):
        entries = [{"kind": "timing", "slot": 2, "ops": [[0, 0, 0, 1, -1], [0, 1, 1, 2, 400], [1, 0, 1, 2, 200]]},
                   {"kind": "timing", "slot": 0, "ops": [[0, 1, 1, 2, 3200]]}, {"kind": "step"}]
        self.assertEqual(8 * 400 / 800, accuracy.bits_sent(entries, PLAN, 2))
        self.assertEqual(8 * 400 / (3 * 800), accuracy.bits_sent(entries, PLAN, 4), "to each of three")
        two_step = {"buckets": [{"option": "int4:64: encode@device all_to_all decode@device encode@device all_gather "
                                           "decode@device", "slices": [{"length": 800}]}]}
        ops = [[0, 1, 1, 2, 300], [0, 4, 1, 2, 300]]
        self.assertEqual(8 * 600 / (1.5 * 800),
                         accuracy.bits_sent([{"kind": "timing", "slot": 2, "ops": ops}], two_step, 4))

    def test_what_is_fastest_depends_on_the_link(self):
        def row(name, bits, ms, steps=1.0, met=True):
            return {"name": f"text, 2 ranks: {name}", "bits": bits, "ms": ms, "steps": steps, "met": met,
                    "elements": 1_000_000, "ms_fp32": 10.0}

        rows = [row("int8", 8, 11), row("int4", 4, 20), row("int3packed", 2, 20, met=False), row("slow", 2, 20, steps=3.0)]
        self.assertEqual("text, 2 ranks: int8", accuracy.fastest(rows, 1e9)[0]["name"])
        best, times = accuracy.fastest(rows, 100e6)
        self.assertEqual("text, 2 ranks: int4", best["name"])
        self.assertAlmostEqual((0.010 + 0.32) / (0.020 + 0.04), times)
        self.assertIsNone(accuracy.fastest(rows, 1e12), "fp32")
        self.assertIsNone(accuracy.fastest([row("int3packed", 2, 20, met=False)], 1e6))


if __name__ == "__main__":
    unittest.main()
