# The rows that TRL, LLaMA-Factory, axolotl, torchtune and unsloth's script train on, from exported files, beside the engine's: every
# form of data, token by token. Then ten steps from one adapter in each. One tool after the other, for they have 8 GB each.
set -euo pipefail
command -v python3 > /dev/null || exit 3
# shellcheck source=.ci/torch.sh
. .ci/torch.sh
# shellcheck source=.ci/tools.sh
. .ci/tools.sh
export OMP_NUM_THREADS=1
cargo build --quiet --locked --bin peft-tune
binary=${CARGO_TARGET_DIR:-target}/debug/peft-tune
python=$(command -v python)
scripts/peers/exported_rows.py "$binary" --tool trl --python "$python"
scripts/peers/exported_rows.py "$binary" --tool unsloth --python "$python"
scripts/peers/ten_steps.py "$binary" --tools "loop=$python,trl=$python,unsloth=$python" --form messages-turns
[ -n "${EXPORTED_ROWS_ALL:-}" ] || { echo "LLaMA-Factory, axolotl, torchtune: not compared without EXPORTED_ROWS_ALL=1" && exit 0; }
left_out=0
for name in llamafactory axolotl torchtune; do
  tool "$name" || { left_out=1 && continue; }
  scripts/peers/exported_rows.py "$binary" --tool "$name" --python "$tool_python"
  for form in messages-turns messages-all text; do
    scripts/peers/ten_steps.py "$binary" --tools "$name=$tool_python" --form "$form"
  done
  # Where no row is cut, axolotl reads such chats by itself.
  [ "$name" != axolotl ] ||
    scripts/peers/exported_rows.py "$binary" --tool axolotl --python "$tool_python" --forms messages-stops,messages-stops-all --length 512
  # It alone packs without a GPU, and has its last steps made whole: 3 rows in 4 micro-batches.
  [ "$name" != torchtune ] || {
    scripts/peers/exported_rows.py "$binary" --tool torchtune --python "$tool_python" --forms messages-turns,plain,text --packing
    scripts/peers/ten_steps.py "$binary" --tools "torchtune=$tool_python" --form plain --accumulation 4
  }
  drop "$name"
done
[ "$left_out" = 0 ] || exit 3
