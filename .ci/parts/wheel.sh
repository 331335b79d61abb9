# The program and its Python module in a wheel, installed as a user does; the module's configs are PEFT's and TRL's, and the
# notebook runs.
set -euo pipefail
if ! command -v python3 > /dev/null || ! python3 -m venv "$PARTS_TOOLS/maturin" ||
  ! timeout 120 "$PARTS_TOOLS/maturin/bin/pip" download -q -d "$PARTS_TOOLS/maturin/wheels" 'maturin==1.16.*'; then
  exit 3
fi
rm -rf "$PARTS_TOOLS/maturin" "$PARTS_TOOLS/wheel"
scripts/package/wheels.sh --dev "$PARTS_TOOLS/wheel"
scripts/package/wheel-test.sh "$PARTS_TOOLS"/wheel/*.whl
# shellcheck source=.ci/torch.sh
. .ci/torch.sh
pip install -q --no-cache-dir "$PARTS_TOOLS"/wheel/*.whl ipython
python -m pytest -q -p no:cacheprovider -rs python/tests
# Its last cell loads the adapter in PEFT where there is one.
scripts/package/notebook-test.sh "$PARTS_TOOLS"/wheel/*.whl python
