# Exported files, read by PEFT, by DeepSpeed, and by TRL, which trains three steps.
set -euo pipefail
command -v python3 > /dev/null || exit 3
# shellcheck source=.ci/torch.sh
. .ci/torch.sh
scripts/peers/exports.py --tools peft,trl,deepspeed --require peft,trl tests/golden/exports/*
scripts/peers/exports.py --tools trl --train tests/golden/exports/lora
