# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of the source tree that a machine can keep. Each is a function from a Tree to a list of violations, a line each."""

import posixpath
import re
from pathlib import Path

import measures
import tables
import words

FOLDERS = {"engine", "examples", "hooks", "policies", "python", "tests", "tuner"}
GENERATED = {"build"}  # beside what starts with a dot, such as .git and .venv

# The folders of this project that each folder may include, besides itself. A file belongs to the longest key that matches it, so a
# folder may include its sub-folders only where it names them.
MAY_INCLUDE = {
    "engine/core": [],
    "engine/compress": ["engine/core"],
    "engine/comm": ["engine/core"],
    "engine/exec": ["engine/core", "engine/compress", "engine/comm"],
    "policies/cost": ["engine/core"],
    "policies/space": ["engine/core", "policies/cost"],
    "policies/search": ["engine/core", "policies/cost", "policies/space"],
    "policies": ["engine/core", "policies/cost", "policies/space", "policies/search"],
    "tuner": ["policies", "engine"],
    "tuner/files": ["tuner", "policies", "engine"],
    "tuner/driver": ["tuner", "tuner/files", "policies", "engine"],
    "tuner/forecast": ["tuner", "tuner/files", "policies", "engine"],
    "tuner/report": ["tuner", "tuner/files", "tuner/forecast", "policies", "engine"],
    "tuner/cli": ["tuner", "tuner/files", "tuner/forecast", "tuner/report", "policies", "engine"],
    "hooks/c10d": ["tuner", "policies", "engine", "gradtune"],
    "hooks": ["hooks/c10d", "tuner", "policies", "engine", "gradtune"],
    "python": ["hooks", "hooks/c10d", "tuner", "policies", "engine", "gradtune"],
    "examples": ["gradtune"],
    "tests": ["engine", "policies", "tuner", "hooks", "gradtune", "examples"],
}

# The families of compressors, and which others each may include. All may include what they share: the files of engine/compress
# itself, simd/ and cuda/, which include no family.
FAMILIES = {"codes": [], "dense": [], "packed": [], "powersgd": [], "randk": ["topk"], "signs": [], "sparse": [], "thc": [], "topk": []}

# Which folders may include a library, by the first part of the include; libraries not named here are for everybody.
LIBTORCH_FOLDERS = ["hooks", "python", "examples", "tests/hooks", "tests/examples", "tests/install", "tests/bench", "tests/gpu"]
LIBRARIES = {
    **dict.fromkeys(["torch", "ATen", "c10", "caffe2", "gloo"], LIBTORCH_FOLDERS),
    **dict.fromkeys(["tbb", "oneapi"], ["engine/compress", "engine/exec", "tests"]),
    "hwy": ["engine/compress", "tests"],
    **dict.fromkeys(["gtest", "gmock"], ["tests"]),
    "pybind11": ["python"],
}
SOURCE_ONLY_LIBRARIES = {"fmt", "nlohmann"}  # their headers are heavy and their ABI is not ours to pass on

# Policies decide and do nothing else.
IMPURE = """atomic chrono condition_variable cstdio ctime filesystem fstream future iostream mutex ostream semaphore
    shared_mutex stop_token thread""".split()

LONGEST_LINE = 120  # of C++; a raw string may be longer
MAY_BE_LONG = re.compile(r'R"|NOLINT|^[{"]')
LONGEST_FILE_LINES = 600
LONG_FILE_REASON = "This file is long because"

MOST_MEMBERS = 25  # of a class; one that outgrows it becomes parts
# Classes that are still to be divided, with the members that they have.
STILL_LARGE = {
}
LONGEST_FUNCTION = 70  # lines
# Files with functions that are still to be divided, or that are one table or text, with the lines of the longest one.
STILL_LONG = {
    "policies/cost/timeline.cc": 77,
    "python/gradtune/_wrap.py": 81,
    "engine/compress/sparse/sparse_units.cuh": 74,
    "tests/hooks/checkpoint_files_test.cc": 88,
    "tests/hooks/rank_failure_test.cc": 96,
    "tests/python/attach_test.py": 96,
    "tests/python/wrap_test.py": 122,
    "tuner/report/bucket_chart.cc": 86,
    "tuner/report/page_style.cc": 71,
}


class Tree:
    """The files of a checkout, as text, by path relative to its root."""

    def __init__(self, root):
        self.root = Path(root)
        self.files = {}
        for top in sorted(self.root.iterdir()):
            if top.name in GENERATED or (top.name.startswith(".") and top.name != ".ci"):
                continue
            for path in [top] if top.is_file() else sorted(top.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    self.files[path.relative_to(self.root).as_posix()] = path.read_text(errors="replace")

    def cpp(self):
        return {path: text for path, text in self.files.items() if path.endswith((".h", ".cc", ".cu", ".cuh"))}


def includes(text):
    return re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', text, re.M)


def within(path, folders):
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def layer_of(path):
    return max((layer for layer in MAY_INCLUDE if within(path, [layer])), key=len, default=None)


def top_level_folders(tree):
    found = {path.split("/")[0] for path in tree.files if "/" in path}
    return [f"{folder}/: top-level folders are fixed: {sorted(FOLDERS)}" for folder in sorted(found - FOLDERS - {".ci"})]


def layering(tree):
    """Arrows of dependency point down, and an include is written from the repository's root."""
    violations = []
    for path, text in tree.cpp().items():
        layer = layer_of(path)
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
            if name not in tree.files and f"hooks/include/{name}" not in tree.files:
                violations.append(f'{path}: "{name}" is no file, seen from the repository\'s root')
        for name in includes(text):
            ours = name in tree.files or name.startswith("gradtune/")
            if ours and layer and layer_of(name) != layer and not within(layer_of(name) or name, MAY_INCLUDE[layer]):
                violations.append(f"{path}: {layer}/ may not include {name}, only {MAY_INCLUDE[layer] or 'itself'}")
    return violations


def families(tree):
    """A compressor is read, added and deleted in the folder of its family."""
    violations = []
    family = re.compile(rf"engine/compress/({'|'.join(FAMILIES)})/")
    for path, text in tree.cpp().items():
        if not within(path, ["engine/compress"]):
            continue
        own = family.match(path)
        allowed = [own.group(1), *FAMILIES[own.group(1)]] if own else []
        violations += [
            f"{path}: may not include {name}; families that it may: {allowed or 'none'}"
            for name in includes(text)
            if (other := family.match(name)) and other.group(1) not in allowed
        ]
        if path.count("/") > 2 and not own and not within(path, ["engine/compress/simd", "engine/compress/cuda"]):
            violations.append(f"{path}: in no family that FAMILIES names")
    return violations


def libraries(tree):
    """LibTorch, oneTBB and the others stay in the folders that are made for them."""
    violations = []
    for path, text in tree.cpp().items():
        for name in includes(text):
            library = name.split("/")[0]
            if name in tree.files or "/" not in name:
                continue
            if library in LIBRARIES and not within(path, LIBRARIES[library]):
                violations.append(f"{path}: <{name}> belongs in {LIBRARIES[library]} only")
            if library in SOURCE_ONLY_LIBRARIES and not path.endswith(".cc"):
                violations.append(f"{path}: <{name}> belongs in .cc files only")
    return violations


def own_header_first(tree):
    """A source includes the header of its name first, so compiling it shows that this header compiles alone."""
    return [
        f'{path}: does not include "{header}" first'
        for path, text in tree.cpp().items()
        for header in [re.sub(r"\.cc$", ".h", path)]
        if header != path and header in tree.files and includes(text)[:1] != [header]
    ]


def pure_policies(tree):
    """policies/ has no clock, no thread and no input or output."""
    return [
        f"{path}: <{name}>, but policies have no clock, no thread and no I/O"
        for path, text in tree.cpp().items()
        if within(path, ["policies"])
        for name in includes(text)
        if name in IMPURE
    ]


def spdx_heads(tree):
    violations = []
    for path, text in tree.files.items():
        name = path.split("/")[-1]
        is_script = text.startswith("#!")
        is_code = name.endswith((".h", ".cc", ".cu", ".cuh", ".py", ".pyi", ".sh", ".cmake", ".cmake.in")) or name == "CMakeLists.txt"
        head = text.splitlines()[:4]
        spdx = [re.sub(r"^(//|#) ", "", line) for line in head if "SPDX" in line]
        wanted = ["SPDX-FileCopyrightText: The gradtune authors", "SPDX-License-Identifier: Apache-2.0"]
        if (is_code or is_script) and spdx != wanted:
            violations.append(f"{path}: does not start with the two SPDX lines")
    return violations


def header_heads(tree):
    """A header says what it is, and is included once."""
    violations = []
    for path, text in tree.cpp().items():
        if not path.endswith((".h", ".cuh")):
            continue
        if not re.match(r"(// SPDX.*\n){2}//\n// \S", text):
            violations.append(f"{path}: no paragraph under the SPDX lines says what it is")
        if "\n#pragma once\n" not in text and not path.endswith("-inl.h"):
            violations.append(f"{path}: no #pragma once")
    return violations


def registered_sources(tree):
    """A source that no CMakeLists.txt names is dead."""
    violations = []
    for path in tree.cpp():
        if not path.endswith((".cc", ".cu")) or within(path, ["tests/install"]):
            continue
        folder, _, name = path.rpartition("/")
        lists = [text for file, text in tree.files.items() if file.endswith(("CMakeLists.txt", ".cmake")) and within(path, [file.rpartition("/")[0]])]
        if not any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for text in lists):
            violations.append(f"{path}: in no CMakeLists.txt of {folder}/ or above")
    return violations


def short_lines(tree):
    """The formatter breaks code at 120 characters, but not comments."""
    return [
        f"{path}:{number}: {len(line)} characters; {LONGEST_LINE} are allowed"
        for path, text in tree.cpp().items()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LONGEST_LINE and not MAY_BE_LONG.search(line)
    ]


def short_files(tree):
    violations = []
    for path, text in tree.files.items():
        lines = text.count("\n")
        if lines > LONGEST_FILE_LINES and path.endswith((".h", ".cc", ".cu", ".cuh", ".py", ".cmake")):
            if LONG_FILE_REASON not in "\n".join(text.splitlines()[:30]):
                violations.append(f'{path}: {lines} lines; split it, or let its head say "{LONG_FILE_REASON} ..."')
    return violations


def small_classes(tree):
    violations = []
    for path, text in tree.cpp().items():
        for line, name, members in measures.classes(text):
            allowed = STILL_LARGE.get(name, MOST_MEMBERS)
            if members > allowed:
                violations.append(f"{path}:{line}: {name} has {members} members; {allowed} are allowed")
    return violations


def short_functions(tree):
    violations = []
    for path, text in tree.files.items():
        functions = []
        if path.endswith((".h", ".cc", ".cu", ".cuh")):
            functions = measures.cpp_functions(text)
        elif path.endswith(".py"):
            functions = measures.python_functions(text)
        allowed = STILL_LONG.get(path, LONGEST_FUNCTION)
        violations += [f"{path}:{line}: a function of {lines} lines; {allowed} are allowed" for line, lines in functions if lines > allowed]
    return violations


def plain_words(tree):
    """Sentences of comments, docstrings and pages begin with their subject and are short."""
    return [fault for path, text in tree.files.items() if path != "LICENSE" for fault in words.faults(path, text)]


def test_names(tree):
    """Names of tests are sentences in CamelCase, as GoogleTest wants them."""
    pattern = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\((\w+),\s*(\w+)\)", re.M)
    return [
        f"{path}: the test {suite}.{name} is not in CamelCase"
        for path, text in tree.files.items()
        if path.startswith("tests/") and path.endswith((".cc", ".h", ".cu"))
        for suite, name in pattern.findall(text)
        if not re.fullmatch(r"(DISABLED_)?[A-Z][A-Za-z0-9]*", name) or not re.fullmatch(r"[A-Z][A-Za-z0-9]*", suite)
    ]


def tables_agree(tree):
    """Names of compressors, policies and options are the same in code and pages."""
    return list(tables.differences(tree.files))


def no_machine_paths(tree):
    """Nothing names a folder of the machine that it was written on."""
    pattern = re.compile(r"(?<![\w.$}/-])/(home|root|Users|work|mnt)/\w+")
    return [
        f"{path}:{number}: {match.group(0)}"
        for path, text in tree.files.items()
        if path != "LICENSE" and not within(path, ["tests/structure"])
        for number, line in enumerate(text.splitlines(), 1)
        for match in [pattern.search(line)]
        if match
    ]


def links(tree):
    """A document's link to a file of the repository leads somewhere."""
    violations = []
    for path, text in tree.files.items():
        if not path.endswith(".md"):
            continue
        for target in re.findall(r"\]\(([^)#\s]+)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)):
            if re.match(r"[a-z]+:", target):
                continue
            place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if place not in tree.files and not any(file.startswith(place + "/") for file in tree.files):
                violations.append(f"{path}: a link to {target}, which is not there")
    return violations


def finished(tree):
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    return [
        f"{path}:{number}: {words.search(line).group(0)}"
        for path, text in tree.files.items()
        if not within(path, ["tests/structure"])
        for number, line in enumerate(text.splitlines(), 1)
        if words.search(line)
    ]


RULES = [
    top_level_folders,
    layering,
    families,
    libraries,
    own_header_first,
    pure_policies,
    spdx_heads,
    header_heads,
    registered_sources,
    short_lines,
    short_files,
    small_classes,
    short_functions,
    plain_words,
    test_names,
    tables_agree,
    no_machine_paths,
    links,
    finished,
]
