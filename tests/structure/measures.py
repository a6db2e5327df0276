# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The lengths of functions and the numbers of members of classes, read from formatted C++ and from Python."""

import ast
import re

OPENS = re.compile(r"^(\s*)(?!(?:inline\s+)?namespace\b|extern\b|class\b|struct\b|union\b|enum\b|template\b.*\b(?:class|struct)\s+\w+\s*\{$).*\{$")


def _indent_of_statement(lines, at):
    """The indent of the statement that opens a body in line `at`: signatures and lists of members may have several lines."""
    for first in range(at, max(-1, at - 24), -1):
        indent = len(lines[first]) - len(lines[first].lstrip())
        if lines[first] and indent <= 2:
            statement = "".join(lines[first : at + 1])
            is_one = first == at or (";" not in statement and statement.count("{") == statement.count("}") + 1)
            return indent if is_one else None
    return None


def cpp_functions(text):
    """(line, length in lines) of each body whose statement begins at indent 0 or 2, and that ends at the same indent."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        if OPENS.match(lines[at]) and not lines[at].lstrip().startswith("//") and not re.search(r"=\s*\{$", lines[at]):
            indent = _indent_of_statement(lines, at)
            end = None
            if indent is not None:
                end = next((e for e in range(at + 1, len(lines)) if lines[e].startswith(" " * indent + "}")), None)
            if end is not None and ")" in "".join(lines[max(0, at - 3) : at + 1]):
                yield at + 1, end - at - 1
                at = end
        at += 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def _bare(text):
    """Without comments, strings and what braces of functions hold."""
    text = re.sub(r'R"(\w*)\(.*?\)\1"', '""', text, flags=re.S)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r"'(?:\\.|[^'\\\n])'", "0", text)
    return re.sub(r"^\s*#.*$", "", text, flags=re.M)


def _without(text, opening, closing):
    """Text with what stands between these taken out, outermost first."""
    out, depth = [], 0
    for c in text:
        if c == opening:
            depth += 1
        elif c == closing and depth:
            depth -= 1
        elif depth == 0:
            out.append(c)
    return "".join(out)


def _body(text, at):
    """The text between the brace at that place and its partner."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[at + 1 : end]
    return ""


def _fields(body):
    """The declarations at the top of a class that are data of its objects."""
    count, statement, depth = 0, "", 0
    for c in body:
        depth += {"{": 1, "}": -1}.get(c, 0)
        if depth > 0 or c == "}":
            if c == "}" and depth == 0 and ("(" in _angles(statement) or re.match(r"\s*(class|struct|enum|union)\b", statement)):
                # A function ends with its body; a nested type may be followed by the name of a member.
                statement = "type" if re.match(r"\s*(class|struct|enum|union)\b", statement) else ""
            continue
        if c != ";":
            statement += c
            continue
        count += _declared(statement)
        statement = ""
    return count


def _angles(statement):
    while True:
        shorter = re.sub(r"<[^<>]*>", "", statement)
        if shorter == statement:
            return statement
        statement = shorter


def _declared(statement):
    statement = re.sub(r"\b(public|private|protected)\s*:", "", statement).strip()
    if statement.startswith("type"):
        return len([name for name in statement[4:].split(",") if name.strip()])
    plain = _angles(statement)
    if not plain or re.match(r"(using|friend|typedef|static|class|struct|enum|template|union)\b", plain):
        return 0
    if "(" in plain.split("=")[0] or "operator" in plain:
        return 0
    return plain.count(",") + 1


def classes(text):
    """(line, name, members) of each class that is defined."""
    bare = _bare(text)
    for match in re.finditer(r"\b(?:class|struct)\s+([\w:]+)(?:\s+final)?(?:\s*:[^;{]*)?\s*\{", bare):
        yield bare.count("\n", 0, match.start()) + 1, match.group(1), _fields(_body(bare, match.end() - 1))
