# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tables that stand in several places: the names of compressors, policies and options in code, types and pages."""

import re


def _table(text, heading):
    """The first cells of the Markdown table whose first heading is this; each may name several things in backticks."""
    match = re.search(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M)
    rows = match.group(1).splitlines() if match else []
    return [name for row in rows for name in re.findall(r"`(\w+)[^`]*`", row.split("|")[1])]


def _between(text, begin, end):
    at = text.find(begin)
    return text[at : text.find(end, at)] if at >= 0 else ""


def compressors(files):
    """The places of their names, with the names."""
    yield "engine/compress/table.inc", re.findall(r"^GRADTUNE_COMPRESSOR\((\w+),", files.get("engine/compress/table.inc", ""), re.M)
    yield "engine/compress/README.md", _table(files.get("engine/compress/README.md", ""), "name")


def policies(files):
    yield "policies/table.cc", re.findall(r'^\s+\{"(\w+)"', files.get("policies/table.cc", ""), re.M)
    yield "policies/README.md", _table(files.get("policies/README.md", ""), "policy")
    literal = re.search(r"^Policy = Literal\[(.*?)\]", files.get("python/gradtune/_options.py", ""), re.M | re.S)
    yield "python/gradtune/_options.py", re.findall(r'"(\w+)"', literal.group(1)) if literal else []
    header = re.search(r"policy = \{\};  // (.*)", files.get("hooks/include/gradtune/gradtune.h", ""))
    yield "hooks/include/gradtune/gradtune.h", re.findall(r"\w+", header.group(1).replace("(default)", "")) if header else []
    row = re.search(r"^\| `policy` \|.*", files.get("hooks/README.md", ""), re.M)
    yield "hooks/README.md", re.findall(r"`(\w+)`", row.group(0).split("|")[3]) if row else []


def options(files):
    yield "hooks/options.cc", re.findall(r'^    \{"(\w+)", \[\]', files.get("hooks/options.cc", ""), re.M)
    header = _between(files.get("hooks/include/gradtune/gradtune.h", ""), "struct Options {", "\n};")
    yield "hooks/include/gradtune/gradtune.h", re.findall(r"^  std::optional<.*> (\w+) = \{\};", header, re.M)
    yield "hooks/README.md", _table(files.get("hooks/README.md", ""), "option")
    of_python = _between(files.get("python/gradtune/_options.py", ""), "class Options(", "\n\n\n")
    # Python has no overlap with the next forward pass.
    yield "python/gradtune/_options.py", [*re.findall(r"^    (\w+): ", of_python, re.M), "forward_overlap"]


def differences(files):
    """A line for each place whose names are not those of the code's own table, which comes first."""
    for what, places in (("compressors", compressors), ("policies", policies), ("options", options)):
        own, *others = places(files)
        if own[0] not in files:
            continue
        for place, names in others:
            missing, surplus = sorted(set(own[1]) - set(names)), sorted(set(names) - set(own[1]))
            if place in files and (missing or surplus):
                yield f"{place}: {what} lack {missing or 'none'} of {own[0]}, and have {surplus or 'none'} beside them"
