# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The repository keeps every rule, and every rule notices when it is broken."""

import tempfile
import unittest
from pathlib import Path

import measures
import rules
import tables

ROOT = Path(__file__).resolve().parents[2]
SPDX = "{0} SPDX-FileCopyrightText: The gradtune authors\n{0} SPDX-License-Identifier: Apache-2.0\n"
CC = SPDX.format("//")
HEADER = CC + "//\n// A part.\n#pragma once\n"
CMAKE = SPDX.format("#")

# For each rule, files that break it once.
BROKEN = {
    "top_level_folders": {"docs/guide.md": "Guide\n"},
    "layering": {"policies/a.h": HEADER + '#include "tuner/b.h"\n', "tuner/b.h": HEADER},
    "families": {"engine/compress/topk/a.h": HEADER + '#include "engine/compress/dense/b.h"\n', "engine/compress/dense/b.h": HEADER},
    "libraries": {"engine/comm/a.h": HEADER + "#include <torch/torch.h>\n"},
    "own_header_first": {"tests/a.h": HEADER, "tests/a.cc": CC + '#include <vector>\n#include "tests/a.h"\n', "tests/CMakeLists.txt": CMAKE + "# a.cc\n"},
    "pure_policies": {"policies/a.h": HEADER + "#include <chrono>\n"},
    "spdx_heads": {"tuner/a.py": "print()\n"},
    "header_heads": {"tuner/a.h": CC + "#pragma once\n"},
    "registered_sources": {"tuner/a.cc": CC, "tuner/CMakeLists.txt": CMAKE + "gradtune_library(gradtune_tuner SOURCES data.cc)\n"},
    "short_lines": {"tuner/a.h": HEADER + "// " + "a " * 60 + "\n"},
    "short_files": {"tuner/a.h": HEADER + "int a;\n" * 600},
    "small_classes": {"tuner/a.h": HEADER + "struct A {\n" + "  std::function<void(int)> a = {};\n" * 26 + "};\n"},
    "short_functions": {"tuner/a.h": HEADER + "inline int f() {\n" + "  g();\n" * 71 + "}\n"},
    "plain_words": {"CONTRIBUTING.md": "Whether it rains is not known.\n"},
    "test_names": {"tests/tuner/a_test.cc": CC + "TEST(Race, ends_early) {}\n", "tests/tuner/CMakeLists.txt": CMAKE + "# a_test.cc\n"},
    "tables_agree": {
        "policies/table.cc": CC + 'constexpr PolicyRow kTable[] = {\n      {"auto", "joint", make_auto},\n};\n',
        "policies/CMakeLists.txt": CMAKE + "# table.cc\n",
        "policies/README.md": "| policy | search |\n|---|---|\n| `auto` (default) | joint |\n| `fixed` | none |\n",
    },
    "no_machine_paths": {"README.md": "See /home/" + "me/notes.\n"},
    "links": {"README.md": "[Guide](tests/guide.md)\n"},
    "finished": {"README.md": "TO" + "DO: more\n"},
}

# No rule may object to these files.
SOUND = {
    "README.md": "[Tests](tests/README.md), [data](tests), [there](https://example.com) and `a[0](x)`\n",
    "tests/README.md": "[Back](../README.md#top)\n",
    "engine/core/a.h": HEADER,
    "hooks/include/gradtune/gradtune.h": HEADER + "#include <torch/types.h>\n",
    "examples/b.cc": CC + "#include <gradtune/gradtune.h>\n",
    "examples/CMakeLists.txt": CMAKE + "gradtune_executable(b SOURCES b.cc LIBS gradtune::gradtune)\n",
    "tuner/c.cc": CC + '#include "tuner/c.h"\n#include "engine/core/a.h"\n#include <nlohmann/json.hpp>\n',
    "tuner/CMakeLists.txt": CMAKE + "gradtune_library(gradtune_tuner SOURCES c.cc)\n",
    "tuner/c.h": HEADER,
    "tuner/d.h": CC + "//\n// This file is long because it is a table.\n#pragma once\n" + "int d;\n" * 600,
    "run": "#!/bin/sh\n" + CMAKE,
    "build/generated/e.cc": "TO" + "DO\n",
}


def violations(rule, files):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return rule(rules.Tree(folder))


class Structure(unittest.TestCase):
    def test_repository_keeps_the_rules(self):
        tree = rules.Tree(ROOT)
        self.assertIn("CMakeLists.txt", tree.files)
        for rule in rules.RULES:
            with self.subTest(rule.__name__):
                self.assertEqual([], rule(tree), "\n  ".join(["", *rule(tree)]))

    def test_each_rule_notices(self):
        self.assertEqual({rule.__name__ for rule in rules.RULES}, set(BROKEN))
        for rule in rules.RULES:
            with self.subTest(rule.__name__):
                self.assertEqual(1, len(violations(rule, BROKEN[rule.__name__])))

    def test_a_function_whose_signature_has_several_lines_is_measured(self):
        signatures = ("int f(int a,\n      int b) {\n", "A::A(int a)\n    : a_(a),\n      b_(a) {\n", "template <typename T>\nint f(\n    T a) {\n")
        for signature in signatures:
            text = HEADER + "int before() { return 0; }\n" + signature + "  g();\n" * 71 + "}\n"
            self.assertEqual([71], [length for _, length in measures.cpp_functions(text)], signature)

    def test_an_option_says_the_same_everywhere(self):
        row = '    {.name = "seed",\n     .otherwise = "0",\n     .sentence =\n         "Seed of "\n         "choices.",\n'
        page = "## Options\n| option | default | meaning |\n|---|---|---|\n| `seed` | 0 | Seed of `choices`. It has 63 bits |\n\n### End"
        sound = {"hooks/option_table.cc": row, "hooks/README.md": page}
        self.assertEqual([], list(tables.differences(sound)))
        for wrong in (page.replace("| 0 |", "| 1 |"), page.replace("Seed of", "Number of"), page.replace("`seed`", "`seeds`")):
            self.assertEqual(1, len(list(tables.differences({**sound, "hooks/README.md": wrong}))), wrong)

    def test_each_rule_lets_sound_files_pass(self):
        for rule in rules.RULES:
            with self.subTest(rule.__name__):
                self.assertEqual([], violations(rule, SOUND))


if __name__ == "__main__":
    unittest.main()
