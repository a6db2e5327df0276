# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests the installed package: its types, and its errors if it cannot be loaded."""

from __future__ import annotations

import ast
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
            "['SCALARS', 'STAGES', 'Error', 'Optimizer', 'Progress', 'Replicas', 'Result', 'Scalar', '__version__', "
            "'between_replicas', 'wrap']\n"
            "assert all(getattr(gradtune, name).__doc__ for name in gradtune.__all__ if name != '__version__')\n"
            "from gradtune._options import Options\n"
            "names = set(Options.__annotations__)\n"
            "shown = [set(inspect.signature(f).parameters) for f in (gradtune.wrap, gradtune.between_replicas)]\n"
            "assert all(names < each and 'options' not in each for each in shown), shown\n"
            "assert all(f'        {name}: ' in gradtune.wrap.__doc__ for name in names)\n"
            "print(gradtune.__version__, inspect.signature(gradtune.wrap).parameters['fidelity'].kind)\n"
        )
        self.assertEqual(ran.stdout.split()[0], "0.1.0", ran.stderr)
        self.assertTrue((self.installed() / "py.typed").exists())

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
            self.assertIn("ImportError: gradtune was built with torch 2.1.0, and torch 2.11", ran.stderr)
            (Path(folder) / "torch").mkdir()
            (Path(folder) / "torch" / "__init__.py").write_text(
                "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
            )
            ran = python("import gradtune", folder)
            self.assertIn("ImportError: gradtune needs torch, and there is none: pip install torch==2.1.0", ran.stderr)

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
