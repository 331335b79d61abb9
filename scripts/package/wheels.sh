#!/usr/bin/env bash
# Builds Python wheels that hold the program and the module around it.
#
#     scripts/package/wheels.sh dist                                              # for this machine and those like it
#     scripts/package/wheels.sh --dev dist                                        # what `cargo build` has built, for the tests
#     scripts/package/wheels.sh --portable dist [aarch64-unknown-linux-gnu]       # manylinux_2_28, by zig
#     scripts/package/wheels.sh --relinked dist                                   # the same of what was built here
#
# Needs Rust and python3; brings maturin, and for the last two zig as the C compiler and linker that knows old C libraries.
# --relinked compiles nothing anew: it fails where C code was compiled for functions that only a newer C library has.
# PROFILE=dev takes that of `cargo build` for both, a slower program in less time.
set -euo pipefail
cd "$(dirname "$0")/../.."
form=--release
case ${1:-} in --dev | --portable | --relinked)
  form=$1
  shift
  ;;
esac
output=$(realpath -m "${1:?folder for the wheels}")
host=$(rustc -vV | sed -n 's/^host: //p')
target=${2:-$host}

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
  if ! { rustup target list --installed 2> /dev/null || echo "$host"; } | grep -qx "$target"; then
    rustup target add "$target"
  fi
  maturin --profile "${PROFILE:-release}" --zig --target "$target" --compatibility manylinux_2_28
  ;;
--relinked)
  pip 'ziglang==0.17.*'
  cat > "$tools/cc" <<LINK
#!/bin/sh
export CARGO_ZIGBUILD_ZIG_COMMAND="$tools/python/bin/python3" CARGO_ZIGBUILD_ZIG_COMMAND_ARGS="-m ziglang"
exec "$tools/python/bin/maturin" zig cc -- -target ${host%%-*}-linux-gnu.2.28 "\$@"
LINK
  chmod +x "$tools/cc"
  # For the last step alone: as a setting of cargo it would have everything compiled again.
  maturin --profile "${PROFILE:-release}" --compatibility manylinux_2_28 -- -C "linker=$tools/cc"
  ;;
esac
