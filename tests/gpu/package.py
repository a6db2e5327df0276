#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the Python package of gradtune for this machine's Python and torch, from what `./run gpu pack` carried.

usage: package.py PROGRAMS

The package is PROGRAMS/package/gradtune. The module's own sources are compiled here, since each version of Python has
another interface. All else is in PROGRAMS/lib/libgradtune.so, which was built with the same minor version of torch.
"""
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree
ROOT = Path(__file__).resolve().parents[2]


def version_of_project():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.search(r'^version = "(.+)"$', text, re.MULTILINE)[1]


def abi_of_pybind11(library):
    """The name of the C++ interface under which torch shares its types with other modules."""
    found = re.search(rb"__pybind11_internals_v[0-9]+_gcc_libstdcpp(_cxxabi[0-9]+)", library.read_bytes())
    return [f'-DPYBIND11_BUILD_ABI="{found[1].decode()}"'] if found else []


def compile_module(programs, module):
    import torch
    from torch.utils.cpp_extension import include_paths

    libraries = Path(torch.__file__).parent / "lib"
    includes = [*include_paths(), sysconfig.get_paths()["include"], programs / "include"]
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "module.cc"  # one source, because torch's headers take most of the time
        unit.write_text("".join(f'#include "{path}"\n' for path in sorted((ROOT / "python").glob("*.cc"))), encoding="utf-8")
        command = [
            os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-DNDEBUG", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO",
            *abi_of_pybind11(libraries / "libtorch_python.so"), f"-I{ROOT}", f"-I{ROOT / 'hooks' / 'include'}",
            *(word for path in includes for word in ("-isystem", path)), unit, "-o", module,
            f"-L{programs / 'lib'}", "-lgradtune", f"-L{libraries}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
        subprocess.run([str(word) for word in command], check=True)


def main():
    import torch

    programs = Path(sys.argv[1]).resolve()
    package = programs / "package" / "gradtune"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "gradtune", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "_built_with.py").write_text(
        f'TORCH = "{torch.__version__.split("+")[0]}"\nVERSION = "{version_of_project()}"\n', encoding="utf-8")
    (package / "bin").mkdir()
    shutil.copy(programs / "gradtune", package / "bin" / "gradtune")
    compile_module(programs, package / f"_gradtune{sysconfig.get_config_var('EXT_SUFFIX')}")
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    subprocess.run([sys.executable, "-B", "-c", "import gradtune; print(gradtune.__version__, gradtune.__file__)"], check=True,
                   env=environment)


if __name__ == "__main__":
    main()
