#!/usr/bin/env python3
"""Holds the repository to the conventions of docs/architecture.md that a machine can see.

Sizes, tabs, words that must not be committed, an opening comment and #pragma once in each source
file, and the layout of .clang-format where clang-format 14 is installed. Kernels and tables are
exempt from the sizes, test data from everything.
"""

import pathlib
import re
import shutil
import subprocess
import sys

SOURCES = {".h", ".cc", ".cu", ".rs"}
TEXTS = SOURCES | {".py", ".sh", ".cmake", ".txt", ".md", ".json", ".toml", ".yml", ".yaml", ".mjs"}
LINE_MAX, FUNCTION_MAX, FILE_MAX, HEADER_MAX = 100, 70, 500, 150
SIZE_EXEMPT = re.compile(r"src/backends/|_tables?\.(cc|h)$|_table\.inc$")
GENERATED = re.compile(r"(^|/)(Cargo\.lock|package-lock\.json)$")
FORBIDDEN = [
    (re.compile(r"(?<![\w.])/(work|root)/\w"), "a path of one machine"),
    (re.compile(r"\b(pypi\.org|pythonhosted\.org|npmjs\.(org|com)|deb\.debian\.org)\b"),
     "the host of a package registry"),
    (re.compile(r"(?<!rust-lang/)\b(static\.|index\.)?crates\.io\b(?!-index)"),
     "the host of a package registry"),
    (re.compile(r"\b(TO" r"DO|FIX" r"ME)\b"), "unfinished work: finish it or file it"),
]


def tracked_files():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for name in sorted(names) if (path := pathlib.Path(name)).is_file()]


def function_sizes(lines):
    """Yields (first line, length). In the layout of .clang-format a function ends with a bare
    brace, and begins at the nearest line above with the brace's indentation."""
    for indent in ("", "  "):
        start = None
        for number, line in enumerate(lines, 1):
            if line == indent + "}" and start is not None:
                yield start, number - start + 1
                start = None
            elif re.match(rf"{indent}[A-Za-z_~\[:]", line) and not line.endswith((";", ":")):
                start = number


def check_text(path, lines):
    is_generated = GENERATED.search(path.as_posix()) is not None
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        if "\t" in line:
            yield f"{where}: a tab"
        if path.suffix in SOURCES | {".py", ".sh", ".cmake"} and len(line) > LINE_MAX:
            yield f"{where}: {len(line)} columns, {LINE_MAX} are allowed"
        for pattern, reason in () if is_generated else FORBIDDEN:
            if found := pattern.search(line):
                yield f"{where}: {found[0]!r} is {reason}"


def check_source(path, lines, header_stems):
    # A header speaks for its .cc file and its test too.
    is_pair = path.suffix == ".cc" and path.stem.removesuffix("_test") in header_stems
    if not is_pair and (not lines or not lines[0].startswith(("//", "/*"))):
        yield f"{path}:1: the file does not open with what it is and why"
    if path.suffix == ".h" and "#pragma once" not in lines:
        yield f"{path}:1: no #pragma once"
    if SIZE_EXEMPT.search(path.as_posix()):
        return
    is_test_helper = path.parts[0] == "tests" or path.name.startswith("test_")
    limit = HEADER_MAX if path.suffix == ".h" and not is_test_helper else FILE_MAX
    if len(lines) > limit:
        yield f"{path}:1: {len(lines)} lines, {limit} are allowed: split it by what it does"
    if path.suffix != ".rs":
        for number, size in function_sizes(lines):
            if size > FUNCTION_MAX:
                yield f"{path}:{number}: a function of {size} lines, {FUNCTION_MAX} are allowed"


def check_format(paths):
    program = shutil.which("clang-format-14")
    if program is None:
        print("style: the layout is not checked, clang-format-14 is not installed")
        return
    command = [program, "--dry-run", "--Werror", "--ferror-limit=1", *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in result.stderr.splitlines():
        if "error:" in line:
            yield line


def main():
    errors, sources, files = [], [], tracked_files()
    header_stems = {path.stem for path in files if path.suffix == ".h"}
    for path in files:
        if path.parts[:2] == ("tests", "data") or "corpus" in path.parts:
            continue
        if path.suffix not in TEXTS and path.name not in ("LAYERS", "run"):
            continue
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            errors.append(f"{path}: not UTF-8")
            continue
        errors += check_text(path, lines)
        if path.suffix in SOURCES:
            errors += check_source(path, lines, header_stems)
        if path.suffix in (".h", ".cc"):
            sources.append(path)
    errors += check_format(sources)
    for name in ("README.md", "README.zh.md", "LICENSE"):
        if not pathlib.Path(name).is_file():
            errors.append(f"{name} is missing")
    print("\n".join(errors) or f"style holds: {len(sources)} C++ files")
    return len(errors) > 0


if __name__ == "__main__":
    sys.exit(main())
