# The program with NVIDIA support on a GPU in software. The parts that take minutes each (hopper, forms, sums, ada, graphs, offload,
# bytes) are left to whoever changes what they show.
set -euo pipefail
# shellcheck source=.ci/cuda.sh
. .ci/cuda.sh
scripts/gpu/build-test.sh self doctor auto memory train traps products turing search samples ceilings findings inference
