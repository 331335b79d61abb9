#!/usr/bin/env bash
# Builds Python wheels that hold the program and the module around it.
#
#     scripts/package/wheels.sh dist                                   # this machine's, manylinux_2_28
#     scripts/package/wheels.sh dist aarch64-unknown-linux-gnu         # another machine's
#     scripts/package/wheels.sh --dev dist                             # what `cargo build` has built, for the tests
#
# Needs Rust and python3; brings maturin, and zig as the C compiler and linker that knows old C libraries.
set -euo pipefail
cd "$(dirname "$0")/../.."
profile=release
if [ "${1:-}" = --dev ]; then
  profile=dev
  shift
fi
output=${1:?folder for the wheels}
target=${2:-$(rustc -vV | sed -n 's/^host: //p')}

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/python"
if [ $profile = dev ]; then
  "$tools/python/bin/pip" install -q --no-cache-dir 'maturin==1.16.*'
  "$tools/python/bin/maturin" build --locked --profile dev --compatibility linux --out "$output"
else
  "$tools/python/bin/pip" install -q --no-cache-dir 'maturin==1.16.*' 'ziglang==0.17.*'
  rustup target add "$target" > /dev/null 2>&1 || true
  PATH="$tools/python/bin:$PATH" "$tools/python/bin/maturin" build --locked --release --zig --target "$target" \
    --compatibility manylinux_2_28 --out "$output"
fi
