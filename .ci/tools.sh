# shellcheck shell=bash
# The training tools that exported files are for, each with the packages that work together. TRL is the one of torch.sh.
# `tool NAME` puts a Python with one of them into $tool_python, made anew; `drop NAME` takes its 8 GB away again.
# Fails where there is no room for it, or it cannot be installed within fifteen minutes.
declare -A packages=(
  [llamafactory]="llamafactory==0.9.5 torch==2.9.1 torchaudio==2.9.1"
  [axolotl]="axolotl==0.19.0 torch==2.14.1"
  [torchtune]="torchtune==0.6.1 torchao==0.12.0 torch==2.8.0"
)
tool() {
  local folder="${PARTS_TOOLS:?is set by .ci/part}/$1" words
  if [ "$(df --output=avail -k "$PARTS_TOOLS" | tail -1)" -lt 12000000 ]; then
    echo "$1: not compared, 12 GB below $PARTS_TOOLS are needed for it"
    return 1
  fi
  read -ra words <<< "${packages[$1]}"
  if ! { python3 -m venv "$folder" && timeout 900 "$folder/bin/pip" install -q --no-cache-dir "${words[@]}"; }; then
    rm -rf "$folder"
    echo "$1: not compared, ${packages[$1]} cannot be installed"
    return 1
  fi
  tool_python=$folder/bin/python
}
drop() { rm -rf "${PARTS_TOOLS:?}/$1"; }
