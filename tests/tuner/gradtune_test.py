# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The command-line program as its users call it.

usage: gradtune_test.py PROGRAM
"""
import html
import json
import math
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = ""


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


class Replay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.trace = Path(folder.name) / "trace.json"
        tensors = [{"name": f"t{i}", "numel": 1_000_000 if i % 3 else 500, "ready_us": 900 * i} for i in range(12)]
        self.trace.write_text(json.dumps({"model": "made up", "tensors": tensors}), encoding="utf-8")

    def replay(self, *arguments):
        done = run("replay", self.trace, "--json", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_every_policy_covers_the_trace_and_auto_is_never_worse(self):
        ends = {}
        for policy in ["auto", "espresso", "mergecomp", "wfbp", "mgwfbp", "bytescheduler", "usbyte", "baseline", "exhaustive"]:
            for network in [["--intra", "pcie", "--two-level"], ["--intra", "nvl", "--machines", "4"]]:
                plan = self.replay("--policy", policy, "--compressor", "efsignsgd", *network)
                self.assertEqual(set(plan), {"time_ms", "backward_ms", "planning_ms", "error_bound", "buckets"})
                self.assertEqual(plan["backward_ms"], 9.9)
                ends[policy, network[1]] = plan["time_ms"]
                covered = [0] * 12
                for bucket in plan["buckets"]:
                    self.assertIn(bucket["option"], range(4))
                    for slice_ in bucket.get("slices", []):
                        covered[slice_["tensor"]] += slice_["length"] / (1_000_000 if slice_["tensor"] % 3 else 500)
                    if "slices" not in bucket:
                        for tensor in range(bucket["first"], bucket["last"] + 1):
                            covered[tensor] += 1
                self.assertEqual([round(part, 9) for part in covered], [1] * 12)
        for (policy, intra), end in ends.items():
            self.assertLessEqual(ends["exhaustive", intra], end * (1 + 1e-12) if policy != "mergecomp" else 1e9)
            self.assertLessEqual(ends["auto", intra], end * 1.01 if policy == "exhaustive" else end, policy)

    def test_the_error_bound_is_zero_where_the_search_is_exact_and_null_where_nothing_is_known(self):
        self.assertEqual(self.replay("--policy", "exhaustive")["error_bound"], 0)
        self.assertIsNone(self.replay("--policy", "espresso")["error_bound"])

    def test_a_cost_file_is_a_model_too_and_its_options_are_programs(self):
        rates = [{"kind": kind, "level": level, "message_us": 50, "wait_us": 20,
                  "byte_us": 0.01 if level != "intra" else 0.0005}
                 for kind in ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"] for level in ["flat", "intra", "inter"]]
        codec = {"codec": "topk:0.01", "place": "device", "use": 0, "encode": {"fixed_us": 5, "element_us": 0.0005},
                 "decode": {"fixed_us": 3, "element_us": 0.0001, "byte_us": 0.0005}}
        cost = self.trace.with_name("cost.json")
        cost.write_text(json.dumps({"schema": "gradtune.cost/5", "world_size": 8, "ranks_per_node": 2, "codecs": [codec],
                                    "cores": {"of_rank": 1, "computing": 1, "host_threads": 1},
                                    "scale": {"fixed_us": 1, "element_us": 0.0001}, "collectives": rates}), encoding="utf-8")
        ends = {policy: self.replay("--cost", cost, "--policy", policy) for policy in ["auto", "espresso", "mergecomp", "baseline"]}
        for policy, plan in ends.items():
            self.assertLessEqual(ends["auto"]["time_ms"], plan["time_ms"], policy)
            self.assertGreaterEqual(plan["timeline_ms"], plan["backward_ms"], policy)
        programs = {bucket["option"] for bucket in ends["auto"]["buckets"]}
        self.assertTrue(any("topk:0.01" in program and "@inter" in program for program in programs), programs)
        exact = self.replay("--cost", cost, "--fidelity", "exact")
        self.assertTrue(all("encode" not in bucket["option"] for bucket in exact["buckets"]))
        picture = self.trace.with_name("step.json")
        self.replay("--cost", cost, "--chrome", picture)
        events = json.loads(picture.read_text(encoding="utf-8"))["traceEvents"]
        self.assertTrue(any(event["name"].startswith("all_gather") for event in events))
        rows = {}
        for event in events:
            if event["ph"] == "X":
                rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        for spans in rows.values():
            spans.sort()
            self.assertTrue(all(end <= begin + 1e-6 for (_, end), (begin, _) in zip(spans, spans[1:])), spans)
        travels = [[event["id"] for event in events if event["ph"] == phase] for phase in "be"]
        self.assertTrue(travels[0])
        self.assertCountEqual(*travels)
        self.assertIn("by the executor's rules", run("replay", self.trace, "--cost", cost).stdout)
        flat = self.replay("--cost", cost, "--world-size", "64")
        self.assertTrue(all("@int" not in bucket["option"] for bucket in flat["buckets"]))

    def test_with_a_forward_pass_buckets_are_in_the_order_sent_and_the_time_is_that_of_their_replay(self):
        tensors = json.loads(self.trace.read_text(encoding="utf-8"))["tensors"]
        ready = [tensor["ready_us"] for tensor in tensors]
        after = [0.5 * at for at in ready]  # forward starts with the read of the tensor
        for policy in ["auto", "usbyte", "bytescheduler", "wfbp", "mgwfbp", "baseline", "mergecomp", "espresso"]:
            plan = self.replay("--cost", "linear:100:2.5", "--forward", "0.5", "--policy", policy)
            self.assertEqual(list(plan), ["time_ms", "backward_ms", "timeline_ms", "planning_ms", "buckets"])
            is_late = policy in ["auto", "usbyte", "bytescheduler"]
            now, end, slices = 0, 1.5 * ready[-1], []
            for bucket in plan["buckets"]:
                self.assertEqual(list(bucket), ["slices"])
                now = max(now, *(ready[part["tensor"]] for part in bucket["slices"]), 0)
                now += 100 + 2.5e-3 * sum(part["length"] for part in bucket["slices"])
                for part in bucket["slices"]:
                    end = max(end, now + (after[part["tensor"]] if is_late else after[-1]))
                    slices.append((part["tensor"], part["offset"], part["length"]))
            self.assertAlmostEqual(plan["time_ms"], end * 1e-3, 6)
            begun = [0] * len(tensors)
            for tensor, offset, length in sorted(slices):
                self.assertEqual(offset, begun[tensor])
                begun[tensor] += length
            self.assertEqual(begun, [tensor["numel"] for tensor in tensors])

    def test_the_table_is_for_people(self):
        done = run("replay", self.trace)
        self.assertEqual(done.returncode, 0)
        self.assertIn("made up: 12 tensors", done.stdout)
        self.assertIn("policy auto:", done.stdout)

    def test_what_is_wrong_is_named(self):
        for arguments, code, said in [
            (["replay", self.trace, "--machines", "1048576", "--gpus-per-machine", "2"], 2, "are too many ranks; allowed are 1048576"),
            (["replay", self.trace, "--machines", "1.5"], 2, "\"1.5\" is not allowed; allowed is a whole number from 1 to 1048576"),
            (["replay", self.trace, "--cost", ""], 2, "--cost: the name is empty"),
            (["replay", self.trace, "--cost", "linear:1:1", "--fidelity", "half"], 2, "--fidelity needs --cost FILE"),
            (["replay", self.trace, "--cost", "linear:1:1", "--compressor", "dgc"], 2, "--compressor is for the published model"),
            (["replay", self.trace, "--cost", "linear:1:1", "--two-level"], 2, "--two-level is for the published model"),
            (["replay", self.trace, "--policy", "best"], 1, "known are auto, espresso, mergecomp, wfbp, mgwfbp, bytescheduler, usbyte, baseline, exhaustive"),
            (["replay", self.trace, "--compressor", "zip"], 1, "known are randomk, dgc, efsignsgd, onebit"),
            (["replay", self.trace.with_name("none.json")], 1, "none.json"),
            (["replay", self.trace, "--cost", "linear:5"], 1, "linear:5 is not linear:A_US:B_NS"),
            (["replay", self.trace, "--cost", "linear:5:-1"], 1, "linear:5:-1 is not linear:A_US:B_NS"),
            (["replay", self.trace, "--cost", "linear:5:1x"], 1, "linear:5:1x is not linear:A_US:B_NS"),
            (["replay", self.trace, "--forward", "-1"], 2, "--forward: \"-1\" is not allowed; allowed is a number from 0"),
            (["replay", self.trace, "--cost", "linear:nan:1"], 1, "linear:nan:1 is not linear:A_US:B_NS"),
            (["replay", self.trace, "--cost", "linear:1:inf"], 1, "linear:1:inf is not linear:A_US:B_NS"),
            (["replay", self.trace, "--machines", "100000000"], 2, "allowed is a whole number from 1 to"),
            (["replay", self.trace, "--policy", "mergcomp"], 1, "did you mean \"mergecomp\"?"),
            (["replay", self.trace, "--intra", "pci"], 1, "did you mean \"pcie\"?"),
            (["replay", self.trace, "--fidelity", "lossi"], 2, "did you mean \"lossy\"?"),
            (["replay", self.trace, "--polcy=auto"], 2, "option --polcy is unknown (did you mean \"--policy\"?)"),
            (["replay", self.trace, "--cost", "c", "--chrome", ""], 2, "allowed is the name of a file"),
            (["replay", ""], 2, "allowed is the name of a file"),
            (["replay", self.trace, "--forward", "1", "--policy", "exhaustive"], 1, "not with the next forward pass"),
            (["replay"], 2, "trace is required"),
            (["replay", self.trace, "--cost", self.trace.with_name("other")], 1, "other"),
            (["replay", self.trace, "--cost", self.trace], 1,
             "trace.json: this is a trace, which \"gradtune replay\" takes; a cost file is needed"),
            (["replay", self.trace, "--cost", "c", "--world-size", "8", "--ranks-per-node", "3"], 2, "does not divide"),
            (["replay", self.trace, "--world-size", "8"], 2, "--world-size needs --cost FILE"),
            (["replay", self.trace, "--chrome", "step.json"], 2, "--chrome needs --cost FILE"),
            (["plan"], 2, "subcommand \"plan\" is unknown; known are replay, trace, cost, report, what-if, explain"),
            (["repot"], 2, "subcommand \"repot\" is unknown (did you mean \"report\"?)"),
            (["--verson"], 2, "option --verson is unknown (did you mean \"--version\"?)"),
            ([], 2, "a subcommand is needed"),
            (["report", "a", "b"], 2, "\"b\" is one argument too many"),
            (["report", "a", "-o", ""], 2, "allowed is the name of a file"),
        ]:
            done = run(*arguments)
            self.assertEqual(done.returncode, code, arguments)
            self.assertEqual(done.stdout, "")
            self.assertIn(said, done.stderr)
        self.trace.write_text('{"model": "m", "tensors": [{"name": "a", "numel": 1}]}', encoding="utf-8")
        done = run("replay", self.trace)
        self.assertEqual(done.returncode, 1)
        self.assertIn("trace.json: trace.tensors[0]: the key \"ready_us\" is missing", done.stderr)
        for number in ["nan", "-nan", "inf", "1e400", "", "x"]:
            done = run("replay", self.trace, f"--forward={number}")
            self.assertEqual((done.returncode, done.stdout), (2, ""), number)

    def test_a_trace_without_gradients_is_refused(self):
        for tensors, said in [([], "there are none"), ([{"name": "a", "numel": 0, "ready_us": 0}], "all are empty")]:
            self.trace.write_text(json.dumps({"model": "m", "tensors": tensors}), encoding="utf-8")
            done = run("replay", self.trace)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"trace.json: trace.tensors: {said}", done.stderr)

    def test_what_a_terminal_would_obey_is_not_printed(self):
        tensors = [{"name": "\x1b[2J", "numel": 10, "ready_us": 0}]
        self.trace.write_text(json.dumps({"model": "\x1b]0;title\x07\x9b31m", "tensors": tensors}), encoding="utf-8")
        done = run("replay", self.trace)
        self.assertEqual(done.returncode, 0)
        self.assertIn("title", done.stdout)
        for said in [done.stdout, run("replay", self.trace, "--policy", "\x1b[1m").stderr,
                     run("replay", "\x1b[2Jnone").stderr, run("\x1b[2J").stderr, run("--\x1b[2J").stderr]:
            self.assertNotRegex(said, "[\x00-\x08\x0b-\x1f\x7f-\x9f]")
            self.assertNotEqual(said, "")


JOURNAL = Path(__file__).resolve().parents[1] / "golden" / "journals" / "half_1gbit.jsonl"


class Output(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.trace = self.folder / "trace.json"
        self.trace.write_text('{"model": "m", "tensors": [{"name": "a", "numel": 9, "ready_us": 1}]}', encoding="utf-8")

    def test_what_can_not_be_printed_is_a_failure(self):
        commands = [["--help"], ["--version"], ["replay", "--help"], ["report", JOURNAL], ["replay", self.trace],
                    ["what-if", JOURNAL], ["explain", JOURNAL], ["replay", self.trace, "--json"], ["report", JOURNAL, "-o", self.folder / "page.html"],
                    ["trace", JOURNAL, "-o", self.folder / "t.json"], ["cost", JOURNAL, "-o", self.folder / "c.json"]]
        for command in commands:
            call = [PROGRAM, *map(str, command)]
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1, command)
            self.assertIn("can not write to standard output: No space left", done.stderr)
            closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *call], stderr=subprocess.PIPE, text=True,
                                    timeout=60, check=False)
            self.assertEqual(closed.returncode, 1, command)
            self.assertIn("can not write to standard output: Bad file descriptor", closed.stderr)

    def test_what_can_not_be_written_is_a_failure_and_what_is_no_file_stays(self):
        for command in ["report", "trace", "cost"]:
            done = run(command, JOURNAL, "-o", "/dev/full")
            self.assertEqual((done.returncode, done.stdout), (1, ""), command)
            self.assertIn("can not write /dev/full: No space left", done.stderr)
            self.assertTrue(Path("/dev/full").is_char_device())
        link = self.folder / "link"
        link.symlink_to("page.html")
        self.assertEqual(run("report", JOURNAL, "-o", link).returncode, 0)
        self.assertTrue(link.is_symlink())
        self.assertIn("<html", (self.folder / "page.html").read_text(encoding="utf-8"))
        done = run("report", JOURNAL, "-o", "/dev/stdout")
        self.assertEqual(done.returncode, 0)
        self.assertIn("<html", done.stdout)
        self.assertTrue(Path("/dev/stdout").is_symlink())

    def test_the_version_is_that_of_journals(self):
        done = run("--version")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^gradtune \d+\.\d+\.\d+\n$")

    def test_files_of_another_kind_are_recognised(self):
        cost = self.folder / "cost.json"
        self.assertEqual(run("cost", JOURNAL, "-o", cost).returncode, 0)
        for command, said in [
            (["report", self.trace], "this is a trace, which \"gradtune replay\" takes; a journal is needed"),
            (["cost", cost, "-o", self.folder / "c"], "this is a cost file, which \"gradtune replay --cost\" takes"),
            (["replay", JOURNAL], "\"trace\" and \"cost\" take; a trace is needed"),
            (["report", JOURNAL, "--trace", JOURNAL], "this is a journal, which"),
        ]:
            done = run(*command)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(said, done.stderr)

    def test_rates_of_a_journal_that_ended_early_say_so(self):
        lines = JOURNAL.read_text(encoding="utf-8").splitlines(keepends=True)
        early = self.folder / "early.jsonl"
        first_decision = next(n for n, line in enumerate(lines) if '"what":"race won"' in line)
        early.write_text("".join(lines[:first_decision]), encoding="utf-8")
        said = run("cost", early, "-o", self.folder / "c.json").stdout
        self.assertRegex(said, r"the journal ends after \d+ steps, \w.*, before anything was decided: these rates rest on few")
        self.assertNotIn("the journal ends", run("cost", JOURNAL, "-o", self.folder / "c.json").stdout)


class Trace(unittest.TestCase):
    def test_a_journal_becomes_a_trace_that_can_be_planned_for(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            done = run("trace", JOURNAL, "-o", trace)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            tensors = json.loads(trace.read_text(encoding="utf-8"))["tensors"]
            self.assertEqual(sum(math.prod(tensor["shape"]) for tensor in tensors), 8_551_818)
            self.assertTrue(all(len(tensor["shape"]) in (1, 2, 4) for tensor in tensors), "as the model has them")
            self.assertEqual(tensors, sorted(tensors, key=lambda tensor: tensor["ready_us"]))
            done = run("replay", trace, "--json")
            self.assertEqual(done.returncode, 0)
            self.assertGreater(json.loads(done.stdout)["time_ms"], tensors[-1]["ready_us"] * 1e-3)

    def test_what_is_wrong_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = Path(folder) / "journal.jsonl"
            broken.write_text("{}\n", encoding="utf-8")
            done = run("trace", broken, "-o", Path(folder) / "trace.json")
            self.assertEqual(done.returncode, 1)
            self.assertIn("journal.jsonl: line 1: the key \"schema\" is missing", done.stderr)
            self.assertFalse((Path(folder) / "trace.json").exists())
            done = run("trace", JOURNAL, "-o", Path(folder) / "no" / "trace.json")
            self.assertEqual(done.returncode, 1)
            self.assertIn("no/trace.json", done.stderr)


class WhatIf(unittest.TestCase):
    def ask(self, journal, *arguments):
        done = run("what-if", journal, "--json", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_a_sweep_has_a_row_for_each_combination(self):
        answer = self.ask(JOURNAL, "--world-size", "2,64,4096", "--ranks-per-node", "2", "--rate", "1gbit,25gbit",
                          "--delay", "50us")
        self.assertEqual(list(answer), ["recorded", "strategies", "guessed", "settings"])
        self.assertEqual(answer["recorded"]["world_size"], 2)
        settings = answer["settings"]
        self.assertEqual([(row["world_size"], row["rate_mbit"], row["delay_us"]) for row in settings],
                         [(size, rate, 50) for size in (2, 64, 4096) for rate in (1000, 25000)])
        for row in settings:
            self.assertLessEqual(row["auto_ms"], row["baseline_ms"])
            self.assertGreater(row["auto_error_ms"], 0)
        text = run("what-if", JOURNAL, "--world-size=2,64", "--world-size", "512").stdout
        self.assertIn("In these 3 settings", text)
        self.assertEqual(len(text.split("\n\n")[1].splitlines()), 1 + 3, text)

    def test_one_setting_is_answered_in_a_sentence(self):
        text = run("what-if", JOURNAL, "--world-size", "64", "--ranks-per-node", "8", "--rate", "25gbit", "--delay", "50us").stdout
        self.assertRegex(text, r"^On 64 ranks, 8 on each node, at 25 Gbit/s with a delay of 50 us, a step is expected to take "
                               r"[\d.]+ ms with the baseline, .* and [\d.]+ ms with the strategy that policy auto would choose")
        self.assertIn("the 4 strategies that this job ran", text)
        self.assertIn("The job ran on 2 ranks at", text)
        self.assertIn("never timed messages between ranks of one node", text)

    def test_what_was_never_timed_is_called_a_guess(self):
        answer = self.ask(JOURNAL, "--fidelity", "lossy")
        self.assertEqual(answer["guessed"], ["int8:256", "int3packed:256", "powersgd:16"])
        self.assertIn("their speed is a guess", run("what-if", JOURNAL, "--fidelity", "lossy").stdout)
        self.assertEqual(self.ask(JOURNAL)["guessed"], [])

    def test_it_agrees_with_replay(self):
        """Replay has a step's time without the computation before the first gradient, and fits without the link's probe."""
        with tempfile.TemporaryDirectory() as folder:
            trace, cost = Path(folder) / "trace.json", Path(folder) / "cost.json"
            for name in ["half_1gbit", "lossy_200mbit"]:
                journal = JOURNAL.with_name(f"{name}.jsonl")
                self.assertEqual(run("trace", journal, "-o", trace).returncode, 0)
                self.assertEqual(run("cost", journal, "-o", cost).returncode, 0)
                asked, replayed = {}, {}
                for fidelity in ["exact", "half"]:
                    asked[fidelity] = self.ask(journal, "--fidelity", fidelity)["settings"][0]["baseline_ms"]
                    text = run("replay", trace, "--cost", cost, "--policy", "baseline", "--fidelity", fidelity).stdout
                    replayed[fidelity] = float(re.search(r"by the executor's rules, .*: ([\d.]+) ms", text).group(1))
                expected = replayed["exact"] - replayed["half"]
                self.assertAlmostEqual(asked["exact"] - asked["half"], expected, delta=0.05 * expected)

    def test_what_is_wrong_is_named(self):
        for arguments, code, said in [
            (["--world-size", "1"], 2, "--world-size: Value 1 not in range 2 to 4096"),
            (["--world-size", "8,5000"], 2, "--world-size: Value 5000 not in range 2 to 4096"),
            (["--world-size", "many"], 2, "--world-size: Value many not in range 2 to 4096"),
            (["--ranks-per-node", "0"], 2, "--ranks-per-node: Value 0 not in range 1 to 4096"),
            (["--world-size", "10", "--ranks-per-node", "4"], 1, "--ranks-per-node 4 does not divide --world-size 10"),
            (["--rate", "25"], 2, "--rate: \"25\" is no rate; allowed is a number with its unit"),
            (["--rate", "1gbit,fast"], 2, "--rate: \"fast\" is no rate"),
            (["--delay", "-1us"], 2, "--delay: \"-1us\" is no delay; allowed is a number with its unit"),
            (["--fidelity", "losy"], 2, "did you mean \"lossy\"?"),
            (["--ranks", "8"], 2, "option --ranks is unknown"),
            (["--rate", ",".join(["1gbit"] * 300)], 1, "make 300 combinations; 256 are allowed"),
        ]:
            done = run("what-if", JOURNAL, *arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""), arguments)
            self.assertIn(said, done.stderr)
        with tempfile.TemporaryDirectory() as folder:
            early = Path(folder) / "early.jsonl"
            early.write_text("".join(JOURNAL.read_text(encoding="utf-8").splitlines(keepends=True)[:2]), encoding="utf-8")
            done = run("what-if", early)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("early.jsonl: it has no timings", done.stderr)
            self.assertIn("none.jsonl", run("what-if", Path(folder) / "none.jsonl").stderr)


class Explain(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.strategy, self.trace, self.cost = (self.folder / name for name in ["strategy.json", "trace.json", "cost.json"])
        lines = [json.loads(line) for line in JOURNAL.read_text(encoding="utf-8").splitlines()]
        self.plan = next(line["strategy"] for line in lines
                         if line.get("kind") == "plan" and line["slot"] == 4)
        self.strategy.write_text(json.dumps(self.plan), encoding="utf-8")
        for command, output in [("trace", self.trace), ("cost", self.cost)]:
            self.assertEqual(run(command, JOURNAL, "-o", output).returncode, 0)

    def test_a_journal_is_explained_in_sentences_and_tables(self):
        done = run("explain", JOURNAL)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        head, buckets, columns, ran = done.stdout.split("\n\n")
        story, job, *sentences = head.splitlines()
        self.assertRegex(story, r"^committed bf16 all_reduce, 8 buckets: [\d.]+ -> [\d.]+ ms a step, gain ")
        self.assertRegex(job, r"^On 2 ranks; the link between ranks carries [\d,.]+ Mbit/s \(all-reduce\), and each message takes [\d.]+ ms")
        self.assertEqual(len(sentences), 3)
        self.assertEqual(len(buckets.splitlines()), 2 + 8)
        self.assertIn("Expected, measured: from the bucket's first operation", columns)
        self.assertRegex(columns, r"\nbf16: \w")
        self.assertEqual(len(ran.splitlines()), 1 + 4)
        page = self.folder / "page.html"
        self.assertEqual(run("report", JOURNAL, "-o", page).returncode, 0)
        text = html.unescape(re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8")))
        for sentence in sentences:
            self.assertIn(sentence, text)

    def test_a_strategy_is_explained_with_a_trace_and_a_cost_file(self):
        done = run("explain", self.strategy, "--trace", self.trace, "--cost", self.cost)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("Gradients are sent in 8 groups (buckets)", done.stdout)
        self.assertIn("From the first gradient on, a step is expected to take", done.stdout)
        self.assertNotIn("strategies that ran", done.stdout)

    def test_what_is_missing_or_wrong_is_named(self):
        other = self.folder / "other.json"
        other.write_text('{"model": "m", "tensors": [{"name": "a", "numel": 9, "ready_us": 1}]}', encoding="utf-8")
        early = self.folder / "early.jsonl"
        early.write_text("".join(JOURNAL.read_text(encoding="utf-8").splitlines(keepends=True)[:2]), encoding="utf-8")
        for arguments, code, said in [
            ([self.strategy], 1, "strategy.json: a strategy says how gradients are sent, and not how long that takes: --trace FILE and"),
            ([self.strategy, "--trace", self.trace], 1, "--cost FILE are needed too"),
            ([self.strategy, "--trace", other, "--cost", self.cost], 1, "strategy.json: "),
            ([self.strategy, "--trace", self.cost, "--cost", self.cost], 1, "a trace is needed"),
            ([self.strategy, "--trace", self.trace, "--cost", self.trace], 1, "a cost file is needed"),
            ([JOURNAL, "--cost", self.cost], 1, "this is a journal, which has its own times"),
            ([self.cost], 1, "this is a cost file, which \"gradtune replay --cost\" takes; a journal is needed"),
            ([early], 1, "early.jsonl: "),
            ([self.folder / "none"], 1, "none"),
            ([], 2, "file is required"),
        ]:
            done = run("explain", *arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""), arguments)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
