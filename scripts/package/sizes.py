#!/usr/bin/env python3
"""What a program is made of: `sizes.py PROGRAM`.

Prints two tables in megabytes: sections of the file, and code by crate. A crate is the one in which a function is defined, and
for generic functions of the standard library the one that uses them. C code goes by its file. PROGRAM is an ELF file for any 64-bit
processor; the second table needs its symbols, which `cargo build --release` keeps where
CARGO_PROFILE_RELEASE_STRIP=debuginfo is set.
"""

import argparse
import re
import struct
from collections import Counter
from pathlib import Path

SECTIONS = {
    ".text": "code",
    ".rodata": "constants: texts, tables, fonts, the files of the quickstart",
    ".eh_frame": "how to unwind each function",
    ".eh_frame_hdr": "an index of the same",
    ".gcc_except_table": "what to drop while unwinding",
    ".rela.dyn": "addresses to set at the start",
    ".data.rel.ro": "tables of methods and other constant addresses",
    ".got": "addresses of functions",
    ".symtab": "symbols",
    ".strtab": "names of symbols",
}
# Names of C libraries where the symbols are global, and so of no file.
FOREIGN = {
    "sqlite3": "SQLite (C)",
    "ZSTD": "zstd (C)",
    "HUF": "zstd (C)",
    "FSE": "zstd (C)",
    "ring_core": "ring (C, assembly)",
    "onig": "oniguruma (C)",
}
STANDARD = {"core", "alloc", "std", "hashbrown"}
FUNCTION, FILE = 2, 4


def sections(content: bytes) -> list[tuple[str, int, int, int, int, int]]:
    """Name, kind, offset, size, link and index of each section."""
    if content[:5] != b"\x7fELF\x02":
        raise SystemExit("error: the program is no 64-bit ELF file")
    (start,) = struct.unpack_from("<Q", content, 0x28)
    size, count, names = struct.unpack_from("<HHH", content, 0x3A)
    heads = [struct.unpack_from("<IIQQQQII", content, start + index * size) for index in range(count)]
    table = heads[names][4]
    return [(text(content, table + head[0]), head[1], head[4], head[5], head[6], index) for index, head in enumerate(heads)]


def text(content: bytes, at: int) -> str:
    """The string at an offset."""
    return content[at : content.index(b"\0", at)].decode(errors="replace")


def crate(name: str, file: str) -> str:
    """The crate, or the C library, of a symbol."""
    if name.startswith("_R"):
        # The mangling of RFC 2603: `C`, perhaps `s` and a hash, then a length and the crate's name.
        if found := re.search(r"C(?:s[0-9A-Za-z]*_)?(\d+)_?([A-Za-z_]\w*)", name):
            return found[2][: int(found[1])]
    if name.startswith("_ZN"):
        # The older one: the length of the first part and the part, which for an implementation holds a path.
        length, rest = re.match(r"_ZN(\d+)(.*)", name).groups()
        part = rest[: int(length)]
        if part.startswith("_$LT$") or part.startswith("_<"):
            if found := re.search(r"(?:\$LT\$|\$RF\$|\$u20\$)(?:mut\$u20\$|dyn\$u20\$)?([a-z_][a-z0-9_]*)\.\.", part):
                return found[1]
            return "core"
        return part
    for prefix, library in FOREIGN.items():
        if name.startswith(prefix):
            return library
    if file == "sqlite3.c":
        return FOREIGN["sqlite3"]
    return f"{file} (C)" if file.endswith(".c") else "other C and assembly"


def by_crate(content: bytes, table: tuple, all_sections: list) -> Counter:
    """Bytes of functions by crate. Two names of one address count once."""
    _, _, offset, size, link, _ = table
    names = all_sections[link][2]
    code = {section[5] for section in all_sections if section[0].startswith(".text")}
    sums, seen, file = Counter(), set(), ""
    for at in range(offset, offset + size, 24):
        name, info, _, index, value, length = struct.unpack_from("<IBBHQQ", content, at)
        if info & 15 == FILE:
            file = text(content, names + name)
        elif info & 15 == FUNCTION and index in code and length and value not in seen:
            seen.add(value)
            unit = file if info >> 4 == 0 else ""
            owner = crate(text(content, names + name), unit)
            # Files of Rust are named after the crate: `tokio.0123456789abcdef-cgu.0`.
            if owner in STANDARD and "-cgu." in unit:
                owner = unit.split(".")[0]
            sums[owner] += length
    return sums


def show(title: str, rows: list[tuple[str, int, str]]) -> None:
    """A table for Markdown."""
    print(f"| {title} | MB | |\n|---|---|---|")
    for name, size, what in rows:
        print(f"| {name} | {size / 1e6:.2f} | {what} |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--least", type=float, default=0.4, help="megabytes of a row; smaller ones are summed up")
    arguments = parser.parse_args()
    content = arguments.program.read_bytes()
    found = sections(content)
    least = arguments.least * 1e6
    sizes = sorted(((name, 0 if kind == 8 else size) for name, kind, _, size, _, _ in found), key=lambda row: -row[1])
    rows = [(f"`{name}`", size, SECTIONS.get(name, "")) for name, size in sizes if size >= least]
    rows.append(("the rest", len(content) - sum(size for _, size, _ in rows), ""))
    show("section", [*rows, ("whole file", len(content), "")])
    table = next((section for section in found if section[0] == ".symtab"), None)
    if table is None:
        raise SystemExit("no symbols are in it: build with CARGO_PROFILE_RELEASE_STRIP=debuginfo for the table of crates")
    sums = by_crate(content, table, found)
    rows = [(name, size, "") for name, size in sums.most_common() if size >= least]
    rest = [name for name, size in sums.items() if size < least]
    rows.append((f"{len(rest)} others", sum(sums[name] for name in rest), ""))
    show("code of crate", rows)


main()
