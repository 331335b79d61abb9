# Licences, bans and sources of the dependencies, and advisories where their database can be had.
set -euo pipefail
# Built without optimisation: it checks as fast, and the build takes 1.5 CPU minutes.
command -v cargo-deny > /dev/null ||
  CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$PARTS_TOOLS/deny-build" cargo install --quiet --debug --locked --root "$PARTS_TOOLS" cargo-deny@0.20.2
rm -rf "$PARTS_TOOLS/deny-build"
PATH="$PATH:$PARTS_TOOLS/bin"
cargo deny --locked check licenses bans sources
# The advisories lie in a repository on GitHub.
if timeout 120 cargo deny --locked fetch db > /dev/null 2>&1; then
  cargo deny --locked check --disable-fetch advisories
else
  echo "the database of advisories cannot be fetched here: passed over"
fi
