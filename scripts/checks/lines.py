#!/usr/bin/env python3
"""Lines of Rust by crate, files over 400 lines and functions over 60: `lines.py [TREE]`. Needs formatted sources."""

import collections
import os
import re
import sys

ROOT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "..")
FUNCTION = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?(?:extern \"C\" )?fn \w+")


def sources(folder):
    """Paths of the Rust files below `folder`."""
    for parent, _, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names if name.endswith(".rs"))


def long_functions(lines, most):
    """Lengths of the functions of more than `most` lines: from the signature to the brace that closes it."""
    for start, line in enumerate(lines):
        if not (found := FUNCTION.match(line)):
            continue
        close = found.group(1) + "}"
        for length, later in enumerate(lines[start:], 1):
            if later == close:
                if length > most:
                    yield length
                break
            if length == 1 and later.rstrip().endswith(("}", ";")):
                break


def main():
    folders = ["src"]
    crates = os.path.join(ROOT, "crates")
    if os.path.isdir(crates):
        folders += [f"crates/{name}/src" for name in sorted(os.listdir(crates))]
    totals = collections.Counter()
    print("folder,lines,files,files over 400 lines,functions over 60 lines")
    for folder in folders:
        counts = collections.Counter()
        for path in sources(os.path.join(ROOT, folder)):
            lines = open(path).read().split("\n")[:-1]
            counts["lines"] += len(lines)
            counts["files"] += 1
            counts["long files"] += len(lines) > 400
            counts["long functions"] += sum(1 for _ in long_functions(lines, 60))
        totals.update(counts)
        print(folder, *(counts[key] for key in ("lines", "files", "long files", "long functions")), sep=",")
    print("all", *(totals[key] for key in ("lines", "files", "long files", "long functions")), sep=",")


main()
