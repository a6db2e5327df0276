# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on two shaped nodes, for benchmarks, with their results: they run to their end, or are watched while the link
changes."""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WORTH_PINNING = 1.15  # factor over the best one, as measured in tuning
ATTEMPTS, PAUSE_S = 4, 30  # if a busy machine fails a link's probe; pauses get longer
REFUSED = 3  # exit code of examples/cluster in that case


class LinkRefused(RuntimeError):
    """The link failed its probe in every attempt."""


def attempts():
    """Numbers of attempts, with the pause before each."""
    for number in range(ATTEMPTS):
        time.sleep(PAUSE_S * number)
        yield


def flags_of_parts(doc, parts, models=(), subsets=None, **counts):
    """Flags of a benchmark that runs in parts: its arguments, `parts` as a list, and `model` (the first one by
    default). There is a flag with a list for each of the subsets (all of it by default), and a flag for each
    count with its default. `rows` are the rows of OUT.json for parts that are not run. Names of rows begin with
    `prefix` (the model, unless it is the first) and the part."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    lists = {"parts": parts, **(subsets or {})}
    for name, words in lists.items():
        parser.add_argument(f"--{name}", default=",".join(words))
    models = list(models)
    if models:
        parser.add_argument("--model", choices=models, default=models[0])
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    flags = parser.parse_args()
    flags.build = flags.build.resolve()
    for name, words in lists.items():
        named = getattr(flags, name).split(",")
        if unknown := [word for word in named if word not in words]:
            parser.error(f"--{name} {','.join(unknown)}: there are {', '.join(words)}")
        setattr(flags, name, named)
    flags.prefix = f"{flags.model} " if models and flags.model != models[0] else ""
    earlier = json.loads(flags.out.read_text(encoding="utf-8"))["rows"] if flags.out.exists() else []
    run = [flags.prefix + part for part in flags.parts]
    flags.rows = [entry for entry in earlier if entry["name"].split(":")[0] not in run]
    return flags


class Bench:
    """Runs the example of a build, each time in a fresh pair of processes."""

    def __init__(self, build, folder):
        self.program = build / "examples" / "train_fashion_mnist"
        self.folder = Path(folder)
        self.count = 0

    def launcher(self, link, extra=(), nodes=2, ranks_per_node=1):
        """`link`: its rate, or its rate and delay, as 200mbit-25ms."""
        rate, _, delay = link.partition("-")
        shape = ["--nodes", nodes, "--ranks-per-node", ranks_per_node, "--rate", rate]
        shape += ["--delay", delay] if delay else []
        return [sys.executable, ROOT / "examples" / "cluster", *shape, *extra, "--"]

    def cluster(self, rate, command, environment=None):
        """Runs it on two nodes and returns its report."""
        self.count += 1
        report = self.folder / f"report{self.count}.json"
        self.launch(self.launcher(rate), [*command, "--report", report], environment)
        return json.loads(report.read_text(encoding="utf-8"))

    def launch(self, launcher, command, environment=None):
        """Runs until it has succeeded. A link that fails its probe on a busy machine is tried again later."""
        words = [str(word) for word in [*launcher, *command]]
        for _ in attempts():
            done = subprocess.run(words, env=dict(os.environ, GRADTUNE_QUIET="1", **(environment or {})), check=False,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if done.returncode == 0:
                return
            if done.returncode != REFUSED:
                break
        error = LinkRefused if done.returncode == REFUSED else RuntimeError
        raise error(f"{' '.join(words)} ended with code {done.returncode}:\n{done.stderr[-2000:]}")

    def gradtune(self, rate, flags, steps, pinned=None, evaluate=False):
        command = [self.program, "--steps", steps, *flags] + ([] if evaluate else ["--no-eval"])
        if pinned is None:
            return self.cluster(rate, command)
        # From the first step on, even if its compressors would have to wait in a real training.
        return self.cluster(rate, command + ["--strategy", pinned],
                            {"GRADTUNE_TUNING_BUDGET": "0", "GRADTUNE_LOSSY_AFTER": "0"})


class LiveJob:
    """A job that runs while its link changes. Its output on standard error is kept with the time of each line. It
    begins like Bench.launch: again later if the link failed its probe."""

    def __init__(self, bench, rate, flags, steps, environment=None):
        bench.count += 1
        self.journal = bench.folder / f"live{bench.count}.jsonl"
        self.report = bench.folder / f"live{bench.count}.json"
        self.rate_file = bench.folder / f"rate{bench.count}"
        self.set_rate(rate)
        command = [*bench.launcher(rate, ["--rate-file", self.rate_file]), bench.program, "--steps", steps, "--no-eval",
                   "--journal", self.journal, "--report", self.report, *flags]
        for _ in attempts():
            self._start([str(word) for word in command], dict(os.environ, **(environment or {})))
            while self.process.poll() is None and not any(" nodes x " in line for _, line in self.said):
                time.sleep(0.1)
            if self.process.poll() != REFUSED:
                break

    def _start(self, command, environment):
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True)
        self.said = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.said.append((time.monotonic(), line.rstrip()))

    def failed(self, what):
        """The error to raise, with its last output."""
        return RuntimeError("\n".join([what + ":", *(line for _, line in self.said[-20:])]))

    def set_rate(self, rate):
        """The rate is in force within a twentieth of a second. Returns the time of the request."""
        fresh = self.rate_file.with_suffix(".new")
        fresh.write_text(rate, encoding="utf-8")
        fresh.replace(self.rate_file)
        return time.monotonic()

    def entries(self):
        """The journal's entries so far."""
        if not self.journal.exists():
            return []
        lines = self.journal.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait(self, condition, seconds):
        """Waits until the condition holds for the journal's entries; returns if it does."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            if condition(self.entries()):
                return True
            time.sleep(0.5)
        return condition(self.entries())

    def steps(self):
        return [entry for entry in self.entries() if entry.get("kind") == "step"]

    def step_at(self, moment):
        """The step that ran at that time: a line names its step and comes when that is over."""
        named = [(came, int(line.split("step ")[1].split(":")[0])) for came, line in self.said
                 if line.startswith("gradtune: step ")]
        came, step = min(named, key=lambda entry: abs(entry[0] - moment))
        ms = {entry["step"]: entry["step_ms"] for entry in self.steps()}
        while came > moment and step > 0:
            came -= ms.get(step, 0) / 1000
            step -= 1
        while came < moment and step + 1 in ms:
            step += 1
            came += ms[step] / 1000
        return step

    def end(self, seconds=120):
        """Ends the job early if it has not ended by itself."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(30)
        self._reader.join()
        return self.process.returncode


def median_step(report, warm_up):
    return statistics.median(step["ms"] for step in report["steps"][warm_up:])


def plans(entries):
    """Strategies in a journal, by label."""
    strategies = [entry["strategy"] for entry in entries if isinstance(entry.get("strategy"), dict)]
    return {strategy["label"]: strategy for strategy in strategies}


def are_same(plan, other):
    """Tells if two strategies send the same, with any label and evidence."""
    return all(plan[key] == other[key] for key in ("buckets", "order", "in_flight"))


def decided_values(entries, what, since=0):
    """The values of the decisions of that kind on strategies, by label."""
    return {entry["label"]: entry["value"] for entry in entries if entry.get("what") == what and entry["step"] >= since}


def measured_ms(entries, since=0):
    """Measured times of strategies, by label."""
    return {label: ms for label, ms in decided_values(entries, "measure", since).items() if ms > 0}


def write_plans(entries, labels, folder, tag):
    """Files of those strategies that the journal holds, by label."""
    files, held = {}, plans(entries)
    for label in labels:
        if label in held:
            files[label] = folder / f"{tag}-{len(files)}.json"
            files[label].write_text(json.dumps(held[label]), encoding="utf-8")
    return files


def raced_strategies(entries, folder, tag):
    """Files of strategies that raced and were near the best in the earlier measurement, by label."""
    slots = {entry["slot"]: entry["strategy"]["label"] for entry in entries if entry.get("kind") == "plan"}
    raced = {slots.get(entry["slot"]) for entry in entries if entry.get("kind") == "step" and entry["stage"] == "race"}
    measured = measured_ms(entries)
    worth = {label for label in measured if measured[label] <= WORTH_PINNING * min(measured.values())}
    return write_plans(entries, sorted(raced & worth), folder, tag)


def row(rows, name, value, anchor, ratios, goal, unit="ms"):
    """Adds and prints a row of the result: ratios beside the anchor in the same run, and whether the goal is met."""
    ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
    rows.append({"name": name, "value": value, "unit": unit, "anchor": anchor, "ratio": ratio, "spread": [low, high],
                 "goal": goal, "met": None if goal is None else ratio <= goal})
    judged = "" if goal is None else f"  goal {goal}: {'met' if ratio <= goal else 'MISSED'}"
    print(f"{name:58} {value:8.1f} {unit}  anchor {anchor:8.1f}  ratio {ratio:.3f} [{low:.3f}, {high:.3f}]{judged}",
          flush=True)


def significant(value):
    """Rounds to four significant digits if it is a number with a fraction; also inside lists and dictionaries."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: significant(item) for key, item in value.items()}
    return [significant(item) for item in value] if isinstance(value, list) else value


def results_text(run, rows):
    """A file of results, a row a line. C++ benchmarks write the same (support/results.h)."""
    def compact(value):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    lines = ",\n".join(compact(significant(entry)) for entry in rows)
    return f'{{"schema":"gradtune.benchmark/1",\n"run":{compact(run)},\n"rows":[\n{lines}\n]}}\n'


def save(out, rows):
    """Writes the rows, and the run that produced the last of them."""
    git = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], check=False, capture_output=True,
                         text=True)
    run = {"date": time.strftime("%Y-%m-%d"), "commit": git.stdout.strip(), "cores": len(os.sched_getaffinity(0)),
           "machine": platform.machine(), "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:-2]])}
    out.write_text(results_text(run, rows), encoding="utf-8")
