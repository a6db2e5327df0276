#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Packs the programs that need a GPU together with their libraries.

usage: pack.py BUILD_FOLDER ARCHIVE.tar.xz

It leaves out the libraries of C, C++, LibTorch and NVIDIA: the other machine has them, or its torch does. Besides the
programs, the archive has what package.py makes the Python package from, and the tools that shape a network.
"""
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

THERE = ("libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libutil.so", "ld-linux", "linux-vdso", "libgcc_s.so", "libstdc++",
         "libtorch", "libc10", "libcu", "libnv", "libshm", "libnccl", "libgomp-")
PROGRAMS = ("gradtune", "examples/train_synthetic")
TOOLS = ("ip", "tc")
# A tool sees its libraries alone: the other machine's programs have their own.
START = """#!/bin/sh
here=$(dirname "$0")
LD_LIBRARY_PATH=$here/lib exec "$here/bin/$(basename "$0")" "$@"
"""
HEADERS, INCLUDES = "gloo", (Path("/usr/include"), Path("/usr/local/include"))  # torch does not bring them


def libraries_of(program):
    """The paths of a program's libraries, as found by the loader."""
    said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    for line in said.splitlines():
        name, _, place = line.strip().partition(" => ")
        if place.startswith("/") and not name.startswith(THERE):
            yield name, Path(place.split(" ")[0])


def found(path, what):
    if path is None:
        sys.exit(f"pack.py: {what}: not found on this machine")
    return Path(path)


def add(program, folder, libraries):
    """Copies it and its libraries there."""
    for name, place in libraries_of(program):
        shutil.copyfile(place.resolve(), libraries / name)
    shutil.copy(program, folder / program.name)
    subprocess.run(["strip", "--strip-all", folder / program.name], check=True)


def main():
    build, archive = Path(sys.argv[1]), Path(sys.argv[2])
    programs = [path for path in sorted((build / "gpu").iterdir()) if path.is_file()]
    programs += [build / name for name in PROGRAMS]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "programs"
        for name in ("lib", "include", "tools/bin", "tools/lib"):
            (root / name).mkdir(parents=True)
        for program in programs:
            add(program, root / ("lib" if program.suffix == ".so" else "."), root / "lib")
        for tool in TOOLS:
            add(found(shutil.which(tool, path="/usr/sbin:/sbin:/usr/bin:/bin"), tool), root / "tools" / "bin", root / "tools" / "lib")
            (root / "tools" / tool).write_text(START, encoding="utf-8")
            (root / "tools" / tool).chmod(0o755)
        headers = next((path for path in INCLUDES if (path / HEADERS).is_dir()), None)
        shutil.copytree(found(headers, f"headers {HEADERS}") / HEADERS, root / "include" / HEADERS)
        with tarfile.open(archive, "w:xz", preset=6) as packed:
            packed.add(root, "programs")
    print(f"{archive}: {len(programs)} programs, {archive.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
