# Every crate as a registry would get it, and the archive of a release.
set -euo pipefail
cargo build --quiet --locked --bin peft-tune
scripts/package/crates.sh "$PARTS_TOOLS/crates"
XZ_OPT=-0 scripts/package/archive.sh "${CARGO_TARGET_DIR:-target}/debug/peft-tune" "$PARTS_TOOLS/archive"
scripts/package/archive-test.sh "$PARTS_TOOLS"/archive/*.tar.xz
rm -rf "$PARTS_TOOLS/crates" "$PARTS_TOOLS/archive"
