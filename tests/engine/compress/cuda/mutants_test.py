# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The tests of kernels must notice bugs: every mutant (mutants.py) makes one of them fail.

usage: mutants_test.py ROOT SOURCES COMPILER FLAG... -- LINK...
All mutants are compiled into one program, a copy of device_equals_host_test, which reads the active one from the
environment. SOURCES are the sources to mutate, "a.cu,b.cu" or "all".
"""

import os
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mutants

ROOT, SOURCES, COMPILER = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
SPLIT = sys.argv.index("--")
FLAGS, LINK = sys.argv[4:SPLIT], sys.argv[SPLIT + 1 :]
KERNELS = Path("engine/compress")
TIMEOUT_S = 300

HEADER = "#pragma once\nextern int gradtune_mutant;\n"
SOURCE = '#include <cstdlib>\nint gradtune_mutant = std::getenv("GRADTUNE_MUTANT") ? std::atoi(std::getenv("GRADTUNE_MUTANT")) : 0;\n'


def chosen_mutants():
    """The mutants with their numbers, which begin with 1."""
    return [(i, mutant) for i, mutant in enumerate(mutants.MUTANTS, 1) if SOURCES == ["all"] or mutant.source in SOURCES]


def mutated(text, chosen):
    """The source with all its mutants."""
    places = []
    for number, mutant in chosen:
        at = text.find(mutant.old)
        if at < 0:
            raise ValueError(f"{mutant.source} has no {mutant.old!r}")
        places.append((at, number, mutant))
    for at, number, mutant in sorted(places, reverse=True):
        if mutant.kind == "expression":
            code = f"(gradtune_mutant == {number} ? ({mutant.new}) : ({mutant.old}))"
        else:
            code = f"if (gradtune_mutant == {number}) {{ {mutant.new} }} else {{ {mutant.old} }}"
        text = text[:at] + code + text[at + len(mutant.old) :]
    return text


class Program:
    def __init__(self, folder):
        self.folder, self.path = folder, folder / "mutants"
        (folder / "mutant.h").write_text(HEADER)
        (folder / "mutant.cc").write_text(SOURCE)
        all_have_some = any(mutant.source.endswith(".cuh") for _, mutant in chosen_mutants())
        for source in sorted((ROOT / KERNELS).glob("*/*.cu*")):
            chosen = [(number, mutant) for number, mutant in chosen_mutants() if mutant.source == source.name]
            if source.suffix == ".cu" and not all_have_some and not chosen:
                continue
            copy = folder / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(mutated(source.read_text(), chosen))
        objects = [self.compile(folder / "mutant.cc", [])]
        with ThreadPoolExecutor(2) as pool:
            objects += pool.map(self.compile, sorted((folder / KERNELS).glob("*/*.cu")))
        self.call([COMPILER, *objects, *LINK, "-o", self.path])

    def compile(self, source, extra=("-xc++", "-include", "tests/emulator/cuda.h", "-include", "mutant.h")):
        to = source.with_suffix(".o")
        self.call([COMPILER, *FLAGS, f"-I{self.folder}", f"-I{ROOT}", "-w", *extra, "-c", source, "-o", to])
        return to

    def call(self, command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr[-4000:]}")

    def fails(self, number, specs):
        wanted = ":".join(spec if "." in spec else f"*/{spec}" for spec in specs.split())
        command = [self.path, f"--gtest_filter={wanted}", "--gtest_fail_fast", "--gtest_brief=1"]
        environment = {**os.environ, "GRADTUNE_MUTANT": str(number)}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return True
        if done.returncode == 0 and "PASSED" not in done.stdout:
            raise RuntimeError(f"no test is called {wanted}")
        return done.returncode != 0


class Mutants(unittest.TestCase):
    def test_each_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Program(Path(folder))
            chosen = chosen_mutants()
            specs = sorted({spec for _, mutant in chosen for spec in mutant.specs.split()})
            self.assertFalse(program.fails(0, " ".join(specs)), "tests fail without a mutant")
            with ThreadPoolExecutor(2) as pool:
                failed = list(pool.map(lambda one: program.fails(one[0], one[1].specs), chosen))
            survivors = [f"{mutant.source}: {mutant.old!r} -> {mutant.new!r}" for (_, mutant), dead in zip(chosen, failed) if not dead]
            print(f"{len(chosen)} mutants, {len(survivors)} not noticed")
            self.assertEqual([], survivors, "\n  ".join(["", *survivors]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
