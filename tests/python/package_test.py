# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests the installed package: its types, and its errors if it cannot be loaded."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ranks

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *path: str) -> subprocess.CompletedProcess[str]:
    """Runs code with these folders in front of the other module paths."""
    code = f"import sys; sys.path[:0] = {list(path)!r}\n{code}"
    return subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=120, check=False)


class Package(unittest.TestCase):
    def installed(self) -> Path:
        spec = importlib.util.find_spec("gradtune")
        assert spec is not None and spec.origin is not None
        return Path(spec.origin).parent

    def test_names_and_types(self) -> None:
        ran = python(
            "import gradtune, inspect\n"
            "assert gradtune.__all__ == "
            "['SCALARS', 'STAGES', 'Error', 'Optimizer', 'Progress', 'Replicas', 'Result', 'RoundProgress', 'RoundsOptimizer', "
            "'Scalar', '__version__', 'between_replicas', 'rounds', 'wrap']\n"
            "assert all(getattr(gradtune, name).__doc__ for name in gradtune.__all__ if name != '__version__')\n"
            "from gradtune._options import Options\n"
            "names = set(Options.__annotations__)\n"
            "shown = [set(inspect.signature(f).parameters) for f in (gradtune.wrap, gradtune.rounds, gradtune.between_replicas)]\n"
            "assert all(names < each and 'options' not in each for each in shown), shown\n"
            "assert all(f'        {name}: ' in gradtune.wrap.__doc__ for name in names)\n"
            "print(gradtune.__version__, inspect.signature(gradtune.wrap).parameters['fidelity'].kind)\n"
        )
        self.assertEqual(ran.stdout.split()[0], "0.1.0", ran.stderr)
        self.assertTrue((self.installed() / "py.typed").exists())

    def test_a_wheel_loads_its_own_copies_of_libraries(self) -> None:
        if "manylinux" not in (importlib.metadata.distribution("gradtune").read_text("WHEEL") or ""):
            self.skipTest("it was built where it is installed, and uses the system's libraries")
        ran = python(
            "import gradtune\n"
            "for line in open('/proc/self/maps'):\n"
            "    if any(name in line for name in ('libtbb', 'libfmt', 'libhwy')): print(line.split()[-1])\n"
        )
        loaded = {Path(line) for line in ran.stdout.splitlines()}
        program = subprocess.run(["ldd", self.installed() / "bin" / "gradtune"], capture_output=True, text=True, check=True)
        words = program.stdout.split()
        needed = {Path(word).resolve() for word in words if any(name in word for name in ("/libtbb", "/libfmt", "/libhwy"))}
        carried = set((self.installed().parent / "gradtune.libs").iterdir())
        self.assertEqual(3, len(carried))
        self.assertEqual(carried, loaded)
        self.assertTrue(needed and needed <= carried, f"{needed} beside {carried}")
        self.assertNotIn("not found", program.stdout)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_it_is_typed(self) -> None:
        ran = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "gradtune"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tempfile.gettempdir(),
        )
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_the_users_program_is_checked_by_its_types(self) -> None:
        if not importlib.util.find_spec("mypy"):
            self.skipTest("mypy is not installed")
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.py"
            program.write_text(
                "import torch, gradtune\n"
                "model = torch.nn.Linear(2, 2)\n"
                "optimizer = gradtune.wrap(torch.optim.SGD(model.parameters()), model, fidelity='exact')\n"
                "reveal_type(optimizer.result().gain)\n"
                "gradtune.wrap(torch.optim.SGD(model.parameters()), model, fidelty='exact')\n"
                "gradtune.wrap(torch.optim.SGD(model.parameters()), model, fidelity='some')\n"
            )
            command = [sys.executable, "-m", "mypy", "--strict", str(program)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        self.assertIn('program.py:4: note: Revealed type is "', ran.stdout)
        self.assertIn("float", ran.stdout)
        self.assertIn("program.py:5: error:", ran.stdout)
        self.assertIn("program.py:6: error:", ran.stdout)
        self.assertNotIn("program.py:3: error:", ran.stdout)

    def test_all_fields_of_results_say_what_they_are(self) -> None:
        tree = ast.parse((self.installed() / "_results.py").read_text())
        for each in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
            for field, after in zip(each.body, [*each.body[1:], None]):
                if isinstance(field, ast.AnnAssign):
                    self.assertTrue(
                        isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant),
                        f"{each.name}: {ast.unparse(field)} has no docstring",
                    )

    def test_another_torch_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self.installed(), Path(folder) / "gradtune", ignore=shutil.ignore_patterns("*.so", "bin"))
            built_with = Path(folder) / "gradtune" / "_built_with.py"
            built_with.write_text('TORCH = "2.1.0"\nVERSION = "0.1.0"\n')
            ran = python("import gradtune", folder)
            installed = importlib.metadata.version("torch")
            self.assertIn(f"ImportError: gradtune was built with torch 2.1.0, and torch {installed}", ran.stderr)
            (Path(folder) / "torch").mkdir()
            (Path(folder) / "torch" / "__init__.py").write_text(
                "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
            )
            ran = python("import gradtune", folder)
            self.assertIn("ImportError: gradtune needs torch, and there is none: pip install torch==2.1.0", ran.stderr)

    def test_the_wheel_requires_the_minor_version_that_it_was_built_with(self) -> None:
        minor = ".".join(importlib.metadata.version("torch").split(".")[:2])
        self.assertEqual(importlib.metadata.requires("gradtune"), [f"torch=={minor}.*"])

    def test_a_build_without_a_torch_or_with_an_unsupported_one_says_which_are_supported(self) -> None:
        allowed = "torch>=2.7,<2.16"
        with tempfile.TemporaryDirectory() as folder:
            version = Path(folder) / "version.py"
            for content, said in {
                "": f"has none: pip install '{allowed}' first",
                "__version__ = '2.6.0+cu126'\n": f"supports {allowed}, and in {folder} is torch 2.6: pip install",
                "__version__ = '2.16.0'\n": f"supports {allowed}, and in {folder} is torch 2.16: pip install",
                "nothing\n": f"{folder}/version.py has no version of torch",
            }.items():
                version.write_text(content)
                if not content:
                    version.unlink()
                with self.subTest(content):
                    ran = self.required("wheel", Torch_DIR=folder)
                    self.assertEqual(ran.returncode, 1)
                    self.assertIn(said, ran.stderr)
                    self.assertNotIn("Traceback", ran.stderr)
            version.write_text("__version__ = '2.16.0'\n")
            ran = self.required("wheel", Torch_DIR=folder, GRADTUNE_UNTESTED_TORCH="1")
            self.assertEqual(ran.stdout, "{'dependencies': ['torch==2.16.*']}\n", ran.stderr)

    def required(self, state: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Asks for the requirements in a state of the build, for a package that supports torch 2.7 to 2.15."""
        return python(
            f"import os, torch_version; os.environ.update({variables})\n"
            f"of = torch_version.Dependencies(); of.build_state({state!r})\n"
            "print(of.dynamic_metadata({'oldest': '2.7', 'newest': '2.15'}, {}))",
            str(ROOT / "python"),
        )

    def test_a_source_archive_requires_all_supported_versions(self) -> None:
        ran = self.required("sdist")
        self.assertEqual(ran.stdout, "{'dependencies': ['torch>=2.7,<2.16']}\n", ran.stderr)

    def test_the_program(self) -> None:
        command = [sys.executable, "-m", "gradtune", "--help"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if (self.installed() / "bin" / "gradtune").exists():
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertIn("replay", ran.stdout)
        elif not shutil.which("gradtune"):
            self.assertIn("was not built with this package", ran.stderr)


if __name__ == "__main__":
    ranks.main()
