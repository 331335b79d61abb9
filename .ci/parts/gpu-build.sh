# The program with NVIDIA support: it lints, links, starts without a GPU, and goes into a wheel of its own.
set -euo pipefail
# shellcheck source=.ci/cuda.sh
. .ci/cuda.sh
# The module around it is the plain wheel's.
[ -d "$PARTS_TOOLS/wheel" ] || scripts/package/wheels.sh --dev "$PARTS_TOOLS/wheel"
scripts/gpu/build-test.sh --without-stand-in
scripts/package/cuda-wheel.sh "$PARTS_TOOLS"/wheel/*.whl "$PARTS_TOOLS/cuda" "${CARGO_TARGET_DIR:-target}/debug/peft-tune"
