#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Packs the programs that need a GPU together with their libraries.

usage: pack.py BUILD_FOLDER ARCHIVE.tar.xz

It leaves out the libraries of C, C++, LibTorch and NVIDIA: the other machine has them, or its torch does.
"""
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

THERE = ("libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libutil.so", "ld-linux", "linux-vdso", "libgcc_s.so", "libstdc++",
         "libtorch", "libc10", "libcu", "libnv", "libshm", "libnccl", "libgomp-")
EXAMPLES = ("train_synthetic",)


def libraries_of(program):
    """The paths of a program's libraries, as found by the loader."""
    said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    for line in said.splitlines():
        name, _, place = line.strip().partition(" => ")
        if place.startswith("/") and not name.startswith(THERE):
            yield name, Path(place.split(" ")[0])


def main():
    build, archive = Path(sys.argv[1]), Path(sys.argv[2])
    programs = [path for path in sorted((build / "gpu").iterdir()) if path.is_file()]
    programs += [build / "examples" / name for name in EXAMPLES]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "programs"
        (root / "lib").mkdir(parents=True)
        for program in programs:
            for name, place in libraries_of(program):
                shutil.copyfile(place.resolve(), root / "lib" / name)
            shutil.copy(program, root / program.name)
            subprocess.run(["strip", "--strip-all", root / program.name], check=True)
        with tarfile.open(archive, "w:xz", preset=6) as packed:
            packed.add(root, "programs")
    print(f"{archive}: {len(programs)} programs, {archive.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
