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
    _, sentence = _option_rows(files).get("policy", ("", ""))
    yield "hooks/option_table.cc", re.findall(r"\w+", sentence.partition(":")[2].replace(" or ", ", "))


def _plain(text):
    """Text without marks of Markdown and comments, in one line."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
    return re.sub(r"\s+", " ", re.sub(r"^\s*//", "", text, flags=re.M)).strip()


def _option_rows(files):
    """By name of an option: its default and its sentence, as the code's table has them."""
    table = files.get("hooks/option_table.cc", "")
    literal = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
    rows = re.findall(rf'\.name = "(\w+)",\s*\.otherwise = "([^"]*)",\s*\.sentence =\s+{literal},', table)
    return {name: (default, "".join(re.findall(r'"([^"]*)"', text))) for name, default, text in rows}


def options(files):
    """The places of their names, in order, with what each place says of them."""
    yield "hooks/option_table.cc", {name: f"{text} Default: {default}." for name, (default, text) in _option_rows(files).items()}
    header = _between(files.get("hooks/include/gradtune/gradtune.h", ""), "struct Options {", "\n};")
    members = re.findall(r"((?:^  //.*\n)+)  std::optional<.*> (\w+) = \{\};", header, re.M)
    yield "hooks/include/gradtune/gradtune.h", {name: _plain(comment) for comment, name in members}
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", _between(files.get("hooks/README.md", ""), "## Options", "\n### "), re.M)
    yield "hooks/README.md", {name: (_plain(default), _plain(text)) for name, default, text in rows}
    arguments = _between(files.get("python/gradtune/_wrap.py", ""), "    Args:\n", "    Raises:\n")
    named = re.findall(r"^        (\w+): ((?:.*\n)(?:            .*\n)*)", arguments, re.M)
    yield "python/gradtune/_wrap.py", {name: _plain(text) for name, text in named}
    of_python = _between(files.get("python/gradtune/_options.py", ""), "class Options(", "\n\n\n")
    yield "python/gradtune/_options.py", dict.fromkeys(re.findall(r"^    (\w+): ", of_python, re.M))


def _says(said, default, text):
    """True if a place gives the sentence first, and the default after it or in a column of its own."""
    if isinstance(said, tuple):
        return said[0] == default and said[1].startswith(text.rstrip("."))
    return said is None or said.startswith(f"{text} Default: {default}.")


def differences_of_options(files):
    rows = _option_rows(files)
    places = list(options(files))
    if not rows:
        yield f"{places[0][0]}: no row of an option was found"
    for place, named in places[1:]:
        # Python has no overlap with the next forward pass.
        wanted = [name for name in rows if name != "forward_overlap" or not place.startswith("python/")]
        if place not in files:
            continue
        if list(named) != wanted:
            yield f"{place}: options are {list(named)}, and in {places[0][0]} {wanted}"
        for name in wanted:
            if name in named and not _says(named[name], *rows[name]):
                yield f"{place}: of option {name} {places[0][0]} says '{rows[name][1]} Default: {rows[name][0]}.'"


def differences(files):
    """A line for each place whose names are not those of the code's own table, which comes first."""
    for what, places in (("compressors", compressors), ("policies", policies)):
        own, *others = places(files)
        if own[0] not in files:
            continue
        for place, names in others:
            missing, surplus = sorted(set(own[1]) - set(names)), sorted(set(names) - set(own[1]))
            if place in files and (missing or surplus):
                yield f"{place}: {what} lack {missing or 'none'} of {own[0]}, and have {surplus or 'none'} beside them"
    if "hooks/option_table.cc" in files:
        yield from differences_of_options(files)
