#!/usr/bin/env bash
# Builds Python wheels that hold the program and the module around it.
#
#     scripts/package/wheels.sh dist                                              # for this machine and those like it
#     scripts/package/wheels.sh --dev dist                                        # what `cargo build` has built, for the tests
#     scripts/package/wheels.sh --portable dist [aarch64-unknown-linux-gnu]       # manylinux_2_28, by zig; not tried yet
#
# Needs Rust and python3; brings maturin, and for --portable zig as the C compiler and linker that knows old C libraries.
set -euo pipefail
cd "$(dirname "$0")/../.."
form=--release
case ${1:-} in --dev | --portable)
  form=$1
  shift
  ;;
esac
output=${1:?folder for the wheels}
target=${2:-$(rustc -vV | sed -n 's/^host: //p')}

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/python"
pip() { "$tools/python/bin/pip" install -q --no-cache-dir "$@"; }
maturin() { PATH="$tools/python/bin:$PATH" "$tools/python/bin/maturin" build --locked --out "$output" "$@"; }
pip 'maturin==1.16.*'
case $form in
--dev) maturin --profile dev --compatibility linux ;;
--release) maturin --release --compatibility linux ;;
--portable)
  pip 'ziglang==0.17.*'
  rustup target add "$target" > /dev/null 2>&1 || true
  maturin --release --zig --target "$target" --compatibility manylinux_2_28
  ;;
esac
