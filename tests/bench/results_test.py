# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Committed results are as benchmarks write them, and each is named by the table of its benchmark."""
import json
import unittest
from pathlib import Path

from support.shaped import results_text, significant

RESULTS = Path(__file__).resolve().parent / "results"


class Results(unittest.TestCase):
    def test_numbers_have_four_significant_digits(self):
        row = {"name": "a", "value": 123.456, "spread": [0.0123456, 1234567.0], "seeds": 12345, "goal": None, "met": True}
        self.assertEqual({"name": "a", "value": 123.5, "spread": [0.01235, 1235000.0], "seeds": 12345, "goal": None,
                          "met": True}, significant(row))

    def test_a_row_is_a_line(self):
        text = results_text({"date": "2026-11-25"}, [{"name": "a", "value": 1 / 3}, {"name": "b", "value": 2}])
        self.assertEqual(['{"schema":"gradtune.benchmark/1",', '"run":{"date":"2026-11-25"},', '"rows":[',
                          '{"name":"a","value":0.3333},', '{"name":"b","value":2}', "]}"], text.splitlines())

    def test_committed_files_are_as_written(self):
        for file in RESULTS.glob("*.json"):
            with self.subTest(file.name):
                text = file.read_text(encoding="utf-8")
                results = json.loads(text)
                self.assertEqual(results_text(results["run"], results["rows"]), text)

    def test_the_readme_names_each_file(self):
        readme = (RESULTS / "README.md").read_text(encoding="utf-8")
        for file in RESULTS.glob("*.json"):
            self.assertTrue(f"({file.name})" in readme, f"{file.name} is in no table")


if __name__ == "__main__":
    unittest.main()
