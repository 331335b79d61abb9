# Searches with `backend: trl` and TRL itself on the CPU: outcomes; losses of one worker and of a fresh one, equal to the bit; the
# configs of a trial beside those of its export; ten steps in both engines; memory beside its prediction; kills; models of families
# that the engine lacks.
set -euo pipefail
command -v python3 > /dev/null || exit 3
# shellcheck source=.ci/torch.sh
. .ci/torch.sh
cargo build --quiet --locked --bin peft-tune
scripts/peers/trl-test.sh "${CARGO_TARGET_DIR:-target}/debug/peft-tune" "$(command -v python)"
