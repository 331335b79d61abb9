# The documentation as a site. mdBook is built without optimisation where it is missing; that takes three CPU minutes.
set -euo pipefail
command -v mdbook > /dev/null ||
  CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$PARTS_TOOLS/mdbook-build" cargo install --quiet --debug --locked --root "$PARTS_TOOLS" mdbook@0.5.4 ||
  exit 3
rm -rf "$PARTS_TOOLS/mdbook-build"
PATH="$PATH:$PARTS_TOOLS/bin"
# What it warns of is a page that readers would not see as it was meant.
mdbook build docs 2>&1 | tee "$PARTS_TOOLS/book.log"
if grep -E 'WARN|ERROR' "$PARTS_TOOLS/book.log"; then exit 1; fi
