#!/usr/bin/env bash
# Installs a wheel into a fresh environment, runs the quickstart from it, and then the module's own tests.
#
#     scripts/package/wheel-test.sh WHEEL [PACKAGE...]      # further packages for the tests, such as pandas, peft, trl
set -euo pipefail
wheel=$(realpath "${1:?a wheel}")
shift
repository=$(realpath "$(dirname "$0")/../..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install -q --no-cache-dir "$wheel" pytest "$@"
cd "$folder"
case $wheel in *-manylinux_*)
  # The name tells the oldest C library that the program runs on: auditwheel finds no newer function in it, and pip takes no
  # such wheel for an older system.
  "$folder/python/bin/pip" install -q --no-cache-dir auditwheel
  tag=$(basename "${wheel##*-}" .whl)
  "$folder/python/bin/auditwheel" show --json "$wheel" > audit.json
  judged=$("$folder/python/bin/python" -c 'import json; print(json.load(open("audit.json"))["overall_tag"])')
  # "2_17" comes before "2_28": a wheel may run on older systems than it says.
  if [[ $judged != manylinux_* ]] || [ "$(printf '%s\n' "$judged" "$tag" | sort -V | tail -1)" != "$tag" ]; then
    cat audit.json
    echo "error: the wheel says $tag, and auditwheel $judged" >&2
    exit 1
  fi
  if "$folder/python/bin/pip" download -q --no-deps --no-index --only-binary=:all: --platform manylinux_2_17_x86_64 -d old \
    --find-links "$(dirname "$wheel")" peft-tune 2> refused.txt; then
    echo "error: pip takes the wheel for a system with an older C library" >&2
    exit 1
  fi
  grep -q 'No matching distribution' refused.txt
  echo "$judged by auditwheel; pip refuses it for manylinux_2_17"
  ;;
esac
started=$SECONDS
# As a user without a checkout.
"$folder/python/bin/peft-tune" quickstart --trials 3 --time 20s > quickstart.txt 2> quickstart.log || {
  cat quickstart.log
  exit 1
}
grep -q '^\* recommended: trial ' quickstart.txt || { cat quickstart.txt && exit 1; }
echo "quickstart from the wheel: $((SECONDS - started)) s"
"$folder/python/bin/peft-tune" export --format peft --output config > /dev/null
grep -q '"peft_type": "LORA"' config/adapter_config.json
"$folder/python/bin/python" -m pytest -q -p no:cacheprovider "$repository/python/tests"
