#!/usr/bin/env bash
# Installs a wheel into a fresh environment, runs the quickstart from it, then the module's own tests, and the notebook of the
# documentation in another one.
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
case $wheel in *-manylinux_*) "$repository/scripts/package/audit.sh" "$wheel" ;; esac
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
python3 -m venv "$folder/notebook"
"$folder/notebook/bin/pip" install -q --no-cache-dir ipython
"$repository/scripts/package/notebook-test.sh" "$wheel" "$folder/notebook/bin/python"
