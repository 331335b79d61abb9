"""The text of a kernel in PTX."""

import re
from typing import NamedTuple

import numpy as np

from .block import Block
from .element import UNSIGNED

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*\.loc\b[^\n]*", re.S | re.M)
SHARED_ARRAY = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b(\d+)\s+([$\w]+)\[(\d*)\]")


class Instruction(NamedTuple):
    """`@!guard name.suffix.suffix operands;`"""

    guard: str | None
    negated: bool
    name: str
    suffixes: list
    operands: list

    @property
    def is_block_barrier(self):
        return self.name == "bar" and self.suffixes[0] != "warp"

    @property
    def waits_for_barrier(self):
        return self.name == "mbarrier" and self.suffixes[0] == "try_wait"

    def __str__(self):
        return f"{'.'.join([self.name, *self.suffixes])} {', '.join(self.operands)}"


def split(text):
    """What commas separate outside of braces and brackets."""
    return [piece.strip() for piece in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text) if piece.strip()]


class Kernel:
    """One entry of a module, the first if none is named: its parameters, instructions, and where labels point.

    `widths` has the type of a register by its name, or by its name without the number."""

    def __init__(self, module, name=r"[$\w]+"):
        text = COMMENT.sub("", module)
        entry = re.search(rf"\.entry\s+{name}\s*\((.*?)\)", text, re.S)
        self.parameters = [(words[1][1:], words[-1]) for words in map(str.split, entry[1].split(","))]
        # Shared arrays lie one behind the other; the one without a size is last.
        self.symbols, self.static_bytes = {}, 0
        for align, bits, symbol, count in SHARED_ARRAY.findall(text):
            self.static_bytes += -self.static_bytes % int(align)
            self.symbols[symbol] = self.static_bytes
            self.static_bytes += int(count or 0) * int(bits) // 8
        self.widths, self.labels, self.instructions = {}, {}, []
        self._read(text[text.index("{", entry.end()) + 1 :])
        self._add("ret")

    def _read(self, text):
        """Reads up to the brace that ends the kernel."""
        # Names that a scope declares are renamed: inlined assembler may declare the same in many places.
        scopes, statement = [{}], ""
        for piece in re.split(r"([{};]|^\s*[$\w]+:)", text, flags=re.M):
            if re.fullmatch(r"\s*[$\w]+:", piece):
                self.labels[piece.strip()[:-1]] = len(self.instructions)
            elif piece == ";":
                self._statement(statement.strip(), scopes)
                statement = ""
            elif piece == "{" and not statement.strip():
                scopes.append({})
            elif piece == "}" and not statement.strip():
                scopes.pop()
                if not scopes:
                    return
            else:
                statement += piece
        raise ValueError("the module ends inside a kernel")

    def _statement(self, text, scopes):
        declared = re.fullmatch(r"\.reg\s+\.[a-z]+?(\d*)\s+(.*)", text, re.S)
        if declared:
            for name in split(declared[2]):
                name = name.partition("<")[0]
                if len(scopes) > 1:
                    name = scopes[-1].setdefault(name, f"{name}.{len(self.instructions)}")
                self.widths[name] = UNSIGNED[int(declared[1])] if declared[1] else np.bool_
        elif not text.startswith("."):
            names = {name: own for scope in scopes for name, own in scope.items()}
            self._add(re.sub(r"(?<![%.$\w])[A-Za-z_]\w*(?![.\w])", lambda found: names.get(found[0], found[0]), text))

    def _add(self, text):
        negated, guard, name, operands = re.fullmatch(r"(?:@(!?)(\S+)\s+)?(\S+)\s*(.*)", text, re.S).groups()
        name, *suffixes = name.split(".")
        self.instructions.append(Instruction(guard, bool(negated), name, suffixes, split(operands)))

    def run(self, blocks, threads, arguments, memory, shared_bytes):
        """Runs (x, y) blocks of threads, which have so many bytes of dynamic shared memory. Parameters without an argument are 0."""
        arguments = [*arguments, *[0] * (len(self.parameters) - len(arguments))]
        for y in range(blocks[1]):
            for x in range(blocks[0]):
                Block(self, (x, y), blocks, threads, arguments, memory, shared_bytes).run()
