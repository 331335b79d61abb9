#!/usr/bin/env bash
# Does a wheel run on all systems that its name promises? auditwheel finds no newer function in its program, and pip takes
# the wheel for the system of its name and refuses it for one with an older C library.
#
#     scripts/package/audit.sh WHEEL
set -euo pipefail
wheel=$(realpath "${1:?a wheel}")
tag=$(basename "${wheel##*-}" .whl)
case $tag in
manylinux_*) ;;
*) echo "error: $(basename "$wheel") promises no C library: make it with \`wheels.sh --portable\` or \`--relinked\`" >&2 && exit 2 ;;
esac
processor=${tag#manylinux_*_*_}
package=$(basename "$wheel")
package=${package%%-*}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install -q --no-cache-dir auditwheel
cd "$folder"
# auditwheel starts patchelf only for repairs, and looks for it always.
"$folder/python/bin/auditwheel" show --json "$wheel" > audit.json
judged=$("$folder/python/bin/python" -c 'import json; print(json.load(open("audit.json"))["overall_tag"])')
# "2_17" comes before "2_28": a wheel may run on older systems than it says.
if [[ $judged != manylinux_*_"$processor" ]] || [ "$(printf '%s\n' "$judged" "$tag" | sort -V | tail -1)" != "$tag" ]; then
  cat audit.json
  echo "error: the wheel says $tag, and auditwheel $judged" >&2
  exit 1
fi
taken() {
  "$folder/python/bin/pip" download -q --no-deps --no-index --only-binary=:all: --platform "$1" -d "$1" \
    --find-links "$(dirname "$wheel")" "$package" 2> said.txt
}
taken "$tag" || { cat said.txt && exit 1; }
if taken "manylinux_2_17_$processor"; then
  echo "error: pip takes the wheel for a system with an older C library" >&2
  exit 1
fi
grep -q 'No matching distribution' said.txt
echo "$judged by auditwheel; pip takes it for $tag and refuses it for manylinux_2_17_$processor"
