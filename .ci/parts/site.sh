# The documentation as a site, and the planner in it. mdBook is built without optimisation where it is missing; that takes three CPU minutes.
set -euo pipefail
command -v mdbook > /dev/null ||
  CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$PARTS_TOOLS/mdbook-build" cargo install --quiet --debug --locked --root "$PARTS_TOOLS" mdbook@0.5.4 ||
  exit 3
rm -rf "$PARTS_TOOLS/mdbook-build"
PATH="$PATH:$PARTS_TOOLS/bin"
# What it warns of is a page that readers would not see as it was meant.
mdbook build docs 2>&1 | tee "$PARTS_TOOLS/book.log"
if grep -E 'WARN|ERROR' "$PARTS_TOOLS/book.log"; then exit 1; fi

# The planner: built for browsers, compared with the program, and used in Chromium where that is installed.
command -v python3 > /dev/null || { echo "there is no Python here: the planner is not built" && exit 3; }
target=wasm32-unknown-unknown
if ! [ -d "$(rustc --print target-libdir --target $target)" ] && ! rustup target add $target; then
  echo "Rust's $target cannot be installed here: the planner is not built"
  exit 3
fi
scripts/package/planner.py target/book/planner.html
command -v node > /dev/null || { echo "there is no Node here: the planner is not tried" && exit 3; }
options=()
program=${CARGO_TARGET_DIR:-target}/debug/peft-tune
if [ -x "$program" ]; then options+=(--program "$program"); fi
browsers=(chromium-headless-shell chromium chromium-browser google-chrome chrome-headless-shell)
if [ -z "${CHROMIUM:-}" ] && ! command -v "${browsers[@]}" > /dev/null; then
  echo "there is no Chromium here: the planner is not opened"
  options+=(--no-browser)
elif command -v npm > /dev/null && (cd "$PARTS_TOOLS" && npm pack --silent axe-core@4.10.3 && tar -xzf axe-core-4.10.3.tgz package/axe.min.js) > /dev/null 2>&1; then
  options+=(--axe "$PARTS_TOOLS/package/axe.min.js")
else
  echo "axe-core cannot be had here: accessibility is not checked"
fi
node scripts/checks/planner.mjs target/book/planner.html "${options[@]}"
