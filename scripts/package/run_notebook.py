#!/usr/bin/env python3
"""Runs the code cells of a notebook in their order, in the current folder, with what IPython adds to Python (`%pip`, `!`).

    PYTHON scripts/package/run_notebook.py NOTEBOOK      # PYTHON has ipython

Ends with 1 at the first cell that raises, or of which a command fails, which a notebook itself would pass over. Refuses a notebook
that holds outputs, as those would be of another time.
"""

import json
import sys
import time
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell


class Shell(InteractiveShell):
    """A shell whose commands have to succeed."""

    def system(self, cmd):
        self.system_piped(cmd)
        if self.user_ns["_exit_code"]:
            raise RuntimeError(f"ended with code {self.user_ns['_exit_code']}: {cmd}")


def main(path):
    cells = [cell for cell in json.loads(Path(path).read_text())["cells"] if cell["cell_type"] == "code"]
    held = [cell["id"] for cell in cells if cell["outputs"] or cell["execution_count"] is not None]
    if held or not cells:
        sys.exit(f"{path}: no code cells, or outputs, which are to be cleared, in {', '.join(held)}")
    shell = Shell.instance(colors="nocolor")
    for cell in cells:
        began = time.monotonic()
        ran = shell.run_cell("".join(cell["source"]))
        sys.stdout.flush()
        print(f"cell {cell['id']}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        if not ran.success:
            sys.exit(f"{path}: cell {cell['id']} failed")


if __name__ == "__main__":
    main(sys.argv[1])
