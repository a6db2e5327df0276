# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The sentences of comments, docstrings and pages, and what of plain technical English a machine can check of them."""

import ast
import io
import re
import tokenize
from dataclasses import dataclass

MOST_WORDS = 35
BEGINNINGS = ("What", "Of", "Whether", "Where", "Those", "How")

BEGINS = re.compile(rf"^({'|'.join(BEGINNINGS)})\b(?!\s*\?)")
END = re.compile(r"(?<=[.!?:;])[\"')`*]*\s+(?=[\"'(`*\[]*[A-Z0-9`])")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|al|Fig|Sec|no|approx)\.$")


@dataclass(frozen=True)
class Sentence:
    line: int
    text: str
    is_first: bool  # of its paragraph


def cpp_paragraphs(text):
    """Consecutive lines of // comments; a comment behind code stands alone. Yields (line, text)."""
    block, start = [], 0
    for number, line in enumerate(text.splitlines() + [""], 1):
        code, found, comment = _split_comment(line)
        comment = comment.strip()
        if found and comment and not code.strip() and not re.match(r"(SPDX|clang-format|NOLINT|-{3,})", comment):
            if not block:
                start = number
            block.append(comment)
            continue
        if block:
            yield start, block
            block = []
        if found and comment and code.strip() and not re.match(r"(NOLINT|clang-format)", comment):
            yield number, [comment]


def _split_comment(line):
    """Code and comment of a line; // within a string is none."""
    quoted = False
    for at, c in enumerate(line):
        if c == '"' and (at == 0 or line[at - 1] != "\\"):
            quoted = not quoted
        if not quoted and line.startswith("//", at):
            return line[:at], True, line[at + 2 :]
    return line, False, ""


def hash_paragraphs(text):
    block, start = [], 0
    for number, line in enumerate(text.splitlines() + [""], 1):
        match = re.match(r"\s*#(?!!)\s?(.*)$", line)
        comment = match.group(1).strip() if match else ""
        if comment and not re.match(r"(SPDX|type: ignore|-{3,})", comment):
            if not block:
                start = number
            block.append(comment)
        elif block:
            yield start, block
            block = []


def python_paragraphs(text):
    block, start, last = [], 0, -1
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type != tokenize.COMMENT:
                continue
            comment = token.string.lstrip("#").strip()
            alone = token.line.strip().startswith("#")
            if not comment or re.match(r"(SPDX|type: ignore|noqa|!|-{3,})", comment):
                continue
            if block and alone and token.start[0] == last + 1:
                block.append(comment)
            else:
                if block:
                    yield start, block
                block, start = [comment], token.start[0]
            last = token.start[0] if alone else -1
        if block:
            yield start, block
        tree = ast.parse(text)
    except (SyntaxError, tokenize.TokenError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                for offset, lines in _blocks(first.value.value.splitlines()):
                    yield first.lineno + offset, lines


def _blocks(lines):
    block, start = [], 0
    for number, line in enumerate([*lines, ""]):
        if line.strip():
            if not block:
                start = number
            block.append(line.strip())
        elif block:
            yield start, block
            block = []


def page_paragraphs(text):
    """Prose and list items of Markdown; no code, tables or headings."""
    text = re.sub(r"^( *)```.*?^ *```", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S | re.M)
    block, start = [], 0
    for number, line in enumerate(text.splitlines() + [""], 1):
        bare = line.strip()
        ends = not bare or re.match(r"(#|\||    \S|<)", line) or re.match(r"([-*]|\d+\.) ", bare)
        if ends and block:
            yield start, block
            block = []
        if bare and not re.match(r"(#|\||    \S|<)", line):
            if not block:
                start = number
            block.append(re.sub(r"^([-*]|\d+\.) +", "", bare))


def paragraphs(path, text):
    if path.endswith((".h", ".cc", ".cu", ".cuh")):
        return cpp_paragraphs(text)
    if path.endswith((".py", ".pyi")):
        return python_paragraphs(text)
    if path.endswith(".md"):
        return page_paragraphs(text)
    if path.endswith((".cmake", "CMakeLists.txt", ".sh")) or text.startswith("#!"):
        return hash_paragraphs(text)
    return []


def sentences(path, text):
    for line, block in paragraphs(path, text):
        # A list inside of a comment is one sentence for each of its items.
        items, at = [], line
        for offset, each in enumerate(block):
            if not items or re.match(r"([-*]|\d+[.)]) ", each):
                items.append((line + offset, [re.sub(r"^([-*]|\d+[.)]) +", "", each)]))
            else:
                items[-1][1].append(each)
        first = True
        for at, lines in items:
            joined = " ".join(lines)
            offset = 0
            parts = []
            for part in END.split(joined):
                if parts and ABBREVIATION.search(parts[-1]):
                    parts[-1] += " " + part
                else:
                    parts.append(part)
            for part in parts:
                where = joined.find(part, offset)
                offset = max(where, offset)
                before = joined[:offset].count(" ")
                number, words = at, 0
                for index, each in enumerate(lines):
                    if words <= before:
                        number = at + index
                    words += each.count(" ") + 1
                yield Sentence(number, part.strip(), first)
                first = False


def faults(path, text):
    """A line for each sentence of a file that breaks a rule."""
    for sentence in sentences(path, text):
        words = len(sentence.text.split())
        if match := BEGINS.match(sentence.text):
            yield f'{path}:{sentence.line}: a sentence begins with "{match.group(1)}": {sentence.text[:70]}'
        if words > MOST_WORDS:
            yield f"{path}:{sentence.line}: a sentence of {words} words, {MOST_WORDS} are allowed: {sentence.text[:70]}"


def main(paths):
    total = {"paragraphs": 0, "of them begin so": 0, "sentences": 0, "begin so": 0, "too long": 0}
    for path in paths:
        try:
            text = open(path).read()
        except (UnicodeDecodeError, OSError):
            continue
        for s in sentences(path, text):
            b = bool(BEGINS.match(s.text))
            total["sentences"] += 1
            total["begin so"] += b
            total["paragraphs"] += s.is_first
            total["of them begin so"] += b and s.is_first
            total["too long"] += len(s.text.split()) > MOST_WORDS
        for fault in faults(path, text):
            print(fault)
    print(total)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
