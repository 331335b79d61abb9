#!/usr/bin/env python3
"""The planner as one HTML file: `planner.py FILE.html`.

Builds crates/page for browsers, and puts the module with style and script into the page, so that it works from a file and asks nothing
of a network. The target is `rustup target add wasm32-unknown-unknown`; without it the script says so and ends with exit status 3.
"""

import base64
import gzip
import os
import pathlib
import subprocess
import sys

TARGET = "wasm32-unknown-unknown"
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "crates/page/page"


def has_target():
    folder = subprocess.run(["rustc", "--print", "target-libdir", "--target", TARGET], capture_output=True, text=True, cwd=ROOT)
    return folder.returncode == 0 and pathlib.Path(folder.stdout.strip()).is_dir()


def build():
    """Path of the built module."""
    command = ["cargo", "build", "--locked", "--profile", "page", "-p", "peft-tune-page", "--target", TARGET]
    subprocess.run(command, check=True, cwd=ROOT)
    # As cargo takes it, which runs there.
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    return target / TARGET / "page" / "peft_tune_page.wasm"


def page(module):
    """The HTML of a page with this module."""
    text = (PAGE / "planner.html").read_text()
    # Packed alike whenever it is built.
    packed = base64.b64encode(gzip.compress(module, 9, mtime=0)).decode()
    parts = {
        "/*{report}*/": (ROOT / "src/report/html/assets/page.css").read_text(),
        "/*{style}*/": (PAGE / "planner.css").read_text(),
        "//{script}": (PAGE / "planner.js").read_text(),
        "{{module}}": packed,
    }
    for mark, part in parts.items():
        assert text.count(mark) == 1, mark
        text = text.replace(mark, part)
    return text


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[0])
    if not has_target():
        print(f"the planner cannot be built: `rustup target add {TARGET}` brings what is missing", file=sys.stderr)
        sys.exit(3)
    module = build().read_bytes()
    text = page(module)
    file = pathlib.Path(sys.argv[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    print(f"{file}: {len(text.encode()) / 1024:.0f} KiB, of which the module has {len(module) / 1024:.0f} before it is packed")


if __name__ == "__main__":
    main()
