#!/usr/bin/env bash
# Compares the places of the fields that peft-tune reads of CUPTI's records with those in a toolkit's header. The program's own
# places are compared with the same file by its tests. Needs a C compiler and CUPTI's headers (CUDA_HOME, or the wheel
# nvidia-cuda-cupti, which scripts/gpu/cuda-toolkit.sh installs).
#
#   scripts/gpu/cupti-layouts.sh [--update]
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/gpu/cuda-toolkit.sh
. scripts/gpu/cuda-toolkit.sh
golden=tests/golden/cupti_layouts.txt
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{
  printf '#include <cupti.h>\n#include <stddef.h>\n#include <stdio.h>\n'
  printf '#define FIELD(record, field) printf("%%s.%%s %%zu\\n", #record, #field, offsetof(record, field))\n'
  printf '#define VALUE(name) printf("%%s %%d\\n", #name, (int)name)\n'
  printf 'int main(void) {\n'
  awk '{ if (split($1, part, ".") == 2) print "FIELD(" part[1] ", " part[2] ");"; else print "VALUE(" $1 ");" }' "$golden"
  printf 'return 0;\n}\n'
} > "$folder/layouts.c"
cc -w -I "$CUDA_HOME/include" -I "$CUDA_HOME/extras/CUPTI/include" -o "$folder/layouts" "$folder/layouts.c"
"$folder/layouts" > "$folder/layouts.txt"
if [ "${1:-}" = --update ]; then
  cp "$folder/layouts.txt" "$golden"
fi
diff -u "$golden" "$folder/layouts.txt"
echo "CUPTI's records are as the program reads them"
