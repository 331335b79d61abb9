#!/usr/bin/env bash
# Runs docs/notebook.ipynb from its first cell on, in a folder of its own, and looks whether an adapter came of it.
#
#     scripts/package/notebook-test.sh WHEEL PYTHON     # PYTHON has ipython; what the notebook installs there is the wheel
set -euo pipefail
wheel=$(realpath "${1:?a wheel}")
python=$(command -v "${2:?a Python}")
repository=$(realpath "$(dirname "$0")/../..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
case $python in /*) ;; *) python=$PWD/$python ;; esac
cd "$folder"
started=$SECONDS
# pip takes this file for the name, and asks no registry for it.
"$python" -c 'import pathlib, sys; print("peft-tune @", pathlib.Path(sys.argv[1]).as_uri())' "$wheel" > wheel.txt
PIP_CONSTRAINT=$folder/wheel.txt PIP_NO_CACHE_DIR=1 IPYTHONDIR=$folder/ipython \
  "$python" "$repository/scripts/package/run_notebook.py" "$repository/docs/notebook.ipynb" > notebook.txt 2> notebook.log || {
  cat notebook.txt notebook.log
  exit 1
}
grep -q '"peft_type": "LORA"' adapter/adapter_config.json
test -s adapter/adapter_model.safetensors
sed -n 's/^cell /  &/p' notebook.log
echo "the notebook, from the wheel to an adapter: $((SECONDS - started)) s"
