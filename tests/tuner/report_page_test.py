# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests `gradtune report` as users call it, and its pages as parsers see them.

usage: report_page_test.py PROGRAM WRITE_JOURNAL
"""
import json
import re
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

PROGRAM = WRITE_JOURNAL = ""
JOURNALS = Path(__file__).resolve().parents[1] / "golden" / "journals"
MOST_BYTES = 1_000_000
QUESTIONS = ["Is it tuning?", "Is it done?", "What did it choose?", "Did it help?"]


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=100, check=False)


class Tags(HTMLParser):
    """Finds every element for which a browser may load or run something."""

    def __init__(self):
        super().__init__()
        self.loads = []

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        loads = tag in {"script", "link", "img", "iframe", "object", "embed", "base", "form", "audio", "video", "source", "use", "image"}
        loads = loads or any(name in {"src", "href", "srcset", "xlink:href"} or name.startswith("on") for name in names)
        if loads or (tag == "meta" and "http-equiv" in names):
            self.loads.append((tag, attrs))

    handle_startendtag = handle_starttag


class Page(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def page(self, journal, *arguments):
        output = self.folder / "report.html"
        done = run("report", journal, "-o", output, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(str(output), done.stdout)
        return output.read_text(encoding="utf-8")

    def simulated(self, kind):
        journal = self.folder / f"{kind}.jsonl"
        with journal.open("wb") as file:
            subprocess.run([WRITE_JOURNAL, kind], stdout=file, timeout=100, check=True)
        return journal

    def check(self, text):
        """Checks that the page is well-formed, small, and self-contained. Returns all of its text."""
        self.assertLess(len(text.encode()), MOST_BYTES)
        root = ElementTree.fromstring(text)
        self.assertEqual(root.tag, "html")
        tags = Tags()
        tags.feed(text)
        self.assertEqual(tags.loads, [])
        style = root.find("head/style").text
        self.assertNotRegex(style, r"url\(|@import")
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        self.assertEqual(len(ids), len(set(ids)))
        classes = {name for element in root.iter() for name in (element.get("class") or "").split()}
        unknown = {name for name in classes if not re.search(rf"\.{re.escape(name)}(?![\w-])", style)}
        self.assertEqual(unknown - {"beyond", "label"}, set(), "classes without a style")
        for svg in root.iter("svg"):
            self.assertTrue(svg.get("aria-label") or svg.get("aria-hidden"))
            self.assertNotRegex(ElementTree.tostring(svg, encoding="unicode"), r"nan|inf[ \"]")
        said = "".join(root.itertext())
        for question in QUESTIONS:
            self.assertIn(question, said)
        return said

    def test_recorded_jobs(self):
        for name, says in [("half_1gbit", "10.9 % less (at least 8.6 %)"),
                           ("lossy_200mbit", "49.3 % less (at least 41.8 %)"),
                           ("imported_200mbit", "64.2 % less (at least 60.6 %)")]:
            with self.subTest(name):
                said = self.check(self.page(JOURNALS / f"{name}.jsonl"))
                self.assertIn(says, said)
                self.assertIn("The race", said)
                self.assertIn(f"{name}.jsonl", said)

    def test_names_of_the_job_are_text(self):
        text = self.page(self.simulated("many"))
        said = self.check(text)
        self.assertIn("<script>alert('&", said, "as text")
        self.assertNotIn("<script", text)
        self.assertNotIn("onclick=\"", text)

    def test_changes_and_bans(self):
        said = self.check(self.page(self.simulated("changes")))
        self.assertIn("topk:0.01 for these tensors", said)
        self.assertRegex(said, r"(steps|collectives) take \d+ % longer than before")
        self.assertIn("predicted", said)

    def test_journals_that_end_early(self):
        lines = (JOURNALS / "half_1gbit.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        for end, says in [(1, "The job has not begun"), (2, "The job has not begun"), (3, "The job is being tuned"),
                          (60, "The job is being tuned")]:
            with self.subTest(end):
                cut = self.folder / "cut.jsonl"
                cut.write_text("".join(lines[:end]) + lines[end][:30], encoding="utf-8")
                self.assertIn(says, self.check(self.page(cut)))

    def test_the_answer_comes_first(self):
        said = self.check(self.page(JOURNALS / "lossy_200mbit.jsonl"))
        parts = ["Did it help?", "Yes: 512.5 ms instead of 1010.5 ms", "Before", "After", "Is it tuning?", "Step times"]
        places = [said.index(part) for part in parts]
        self.assertEqual(places, sorted(places))

    def test_a_job_in_rounds(self):
        journal = self.folder / "rounds.jsonl"
        lines = [{"kind": "rounds", "step": 0, "updates": 2, "least": 2, "most": 8},
                 {"kind": "rounds", "step": 30, "updates": 8, "least": 2, "most": 8, "exchange_ms": 35.5, "update_ms": 40}]
        text = (JOURNALS / "half_1gbit.jsonl").read_text(encoding="utf-8")
        journal.write_text(text + "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        said = self.check(self.page(journal))
        for part in ["Why so many updates", "wanted: 5 %", "for which 18 updates are needed, but no more than 8 are allowed"]:
            self.assertIn(part, said)

    def test_a_trace_of_the_measured_steps(self):
        trace = self.folder / "step.json"
        done = run("report", JOURNALS / "lossy_200mbit.jsonl", "--chrome", trace)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("Is it tuning?", done.stdout)
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        steps = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(sorted(name.split(":")[0] for name in steps.values()), ["After", "Before"])
        rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertEqual(rows, {"computation", "encode", "link", "decode"})
        spans = [event for event in events if event["ph"] == "X" and "args" in event]
        self.assertTrue(all(event["args"]["elements"] > 0 and event["dur"] >= 0 for event in spans))
        lines = (JOURNALS / "lossy_200mbit.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        untimed = self.folder / "untimed.jsonl"
        untimed.write_text("".join(line for line in lines if '"kind":"timing"' not in line), encoding="utf-8")
        done = run("report", untimed, "--chrome", trace)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("untimed.jsonl: it has no step to write to", done.stderr)

    def test_without_a_page_it_is_printed(self):
        done = run("report", JOURNALS / "half_1gbit.jsonl")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(done.stdout.startswith("10.9 % less time a step"))
        for question in QUESTIONS:
            self.assertIn(question, done.stdout)
        self.assertIn("bf16 all_reduce, 8 buckets is committed, with a gain of 10.9 %", done.stdout)
        self.assertIn("\ncommitted bf16 all_reduce, 8 buckets: 1084.7 -> 966.1 ms a step, gain 10.9 % (at least 8.6 % with 96 % "
                      "confidence), baseline bf16 all_reduce; tuning took 217 steps and cost 53.2 s", done.stdout)

    def test_the_figures_do_not_depend_on_this_programs_tuner(self):
        text = (JOURNALS / "half_1gbit.jsonl").read_text(encoding="utf-8")
        renamed = self.folder / "renamed.jsonl"
        renamed.write_text(text.replace("bf16 all_reduce, 8 buckets", "sixteen bits"), encoding="utf-8")
        said = run("report", renamed).stdout
        self.assertIn("decides otherwise", said)
        self.assertIn("committed sixteen bits: 1084.7 -> 966.1 ms a step, gain 10.9 % (at least 8.6 %", said)
        self.assertIn("1084.7 ms", said.splitlines()[0])

    def test_what_is_wrong_is_named(self):
        broken, empty, strange = (self.folder / name for name in ["broken.jsonl", "empty.jsonl", "strange.jsonl"])
        broken.write_text("{}\n", encoding="utf-8")
        empty.write_text("", encoding="utf-8")
        text = (JOURNALS / "half_1gbit.jsonl").read_text(encoding="utf-8")
        strange.write_text(re.sub(r'"step_ms":[\d.]+', '"step_ms":null', text, count=1), encoding="utf-8")
        trace = self.folder / "trace.json"
        trace.write_text('{"model": "m", "tensors": [{"name": "a", "numel": 1, "ready_us": 0}]}', encoding="utf-8")
        golden = JOURNALS / "half_1gbit.jsonl"
        for arguments, code, said in [
            ((broken,), 1, "broken.jsonl: line 1: the key \"schema\" is missing"),
            ((empty,), 1, "empty.jsonl: the file is empty; a journal is needed"),
            ((strange,), 1, "strange.jsonl: line 3: step_ms: a number"),
            ((self.folder / "none.jsonl",), 1, "none.jsonl"),
            ((golden, "--trace", trace), 1, "trace.json: the trace is of another model"),
            ((golden, "--trace", self.folder / "none.json"), 1, "none.json"),
            ((golden, "-o", self.folder / "no" / "report.html"), 1, "no/report.html"),
            ((), 2, "journal is required"),
        ]:
            with self.subTest(said):
                done = run("report", *arguments)
                self.assertEqual((done.returncode, done.stdout), (code, ""))
                self.assertIn(said, done.stderr)


if __name__ == "__main__":
    WRITE_JOURNAL = sys.argv.pop(2)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
