#!/usr/bin/env bash
# Packs every crate as a registry would get it, and checks that the program builds from what is packed and from nothing beside it.
#
#     scripts/package/crates.sh FOLDER             # unpacks the crates there and checks the program
#     scripts/package/crates.sh --install FOLDER   # installs it into FOLDER/installed, without optimisation, and searches
#
# Packages of dependencies are those of CARGO_TARGET_DIR, so that after the tests the check has little to do.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=check
if [ "${1:-}" = --install ]; then
  work=install
  shift
fi
mkdir -p "${1:?a folder}"
folder=$(realpath "$1")
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# crates.io takes no more.
most=$((10 * 1024 * 1024))

packed="$folder/packed"
# The build is ours, below: cargo's own would compile all dependencies anew. Files of an edited tree count as well. The page is a part of
# the documentation, and no registry gets it.
cargo package --quiet --workspace --exclude peft-tune-page --locked --no-verify --allow-dirty --target-dir "$packed" 2> "$folder/package.log" || {
  cat "$folder/package.log"
  exit 1
}
overrides=()
for crate in "$packed"/package/*.crate; do
  # With times of now: packed files have one for all, by which cargo would take changed sources for known ones.
  tar -xzmf "$crate" -C "$folder"
  unpacked=$(basename "$crate" .crate)
  bytes=$(stat -c %s "$crate")
  echo "$unpacked: $bytes bytes packed"
  if [ "$bytes" -gt $most ]; then
    echo "error: $unpacked is larger than the $most bytes that a registry takes: leave files out by \`include\` in its Cargo.toml" >&2
    exit 1
  fi
  name=$(sed -n 's/^name = "\(.*\)"/\1/p' "$folder/$unpacked/Cargo.toml" | head -1)
  if [ "$name" = peft-tune ]; then
    program="$folder/$unpacked"
  else
    # No registry has them yet.
    overrides+=(--config "patch.crates-io.$name.path=\"$folder/$unpacked\"")
  fi
done
cd "${program:?the program is not among the crates}"
export CARGO_TARGET_DIR="$target"
if [ $work = check ]; then
  cargo check --quiet "${overrides[@]}"
  echo "the packed program compiles"
else
  # The packed lock file, with our own crates from their folders: `cargo install` alone would take newer dependencies.
  cargo metadata --format-version 1 "${overrides[@]}" > /dev/null
  cargo install --quiet --debug --locked --path . --root "$folder/installed" "${overrides[@]}"
  program="$folder/installed/bin/peft-tune"
  "$program" --version
  # Away from all sources.
  trial=$(mktemp -d)
  trap 'rm -rf "$trial"' EXIT
  cd "$trial"
  "$program" quickstart --trials 1 --time 1m > said.txt 2> log.txt || { cat log.txt && exit 1; }
  grep '^\* recommended: trial ' said.txt
fi
