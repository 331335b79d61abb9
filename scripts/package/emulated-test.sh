#!/usr/bin/env bash
# Starts the program of a wheel for 64-bit ARM on a machine with another processor, under qemu: the pages of help, a search
# of one trial, a training. Says nothing about speed.
#
#     scripts/package/emulated-test.sh WHEEL
#
# Needs qemu-user-static and ARM's C library: `apt-get install qemu-user-static libc6-arm64-cross libgcc-s1-arm64-cross`, or
# another folder with one in SYSROOT. The kernel must know qemu, since a search starts processes; as root the script tells it.
set -euo pipefail
wheel=$(realpath "${1:?a wheel}")
sysroot=${SYSROOT:-/usr/aarch64-linux-gnu}
qemu=$(command -v qemu-aarch64-static || true)
if [ -z "$qemu" ] || [ ! -e "$sysroot/lib/ld-linux-aarch64.so.1" ]; then
  echo "error: qemu-aarch64-static or $sysroot/lib/ld-linux-aarch64.so.1 is missing:" >&2
  echo "\`apt-get install qemu-user-static libc6-arm64-cross libgcc-s1-arm64-cross\`" >&2
  exit 3
fi
formats=/proc/sys/fs/binfmt_misc
[ -e $formats/register ] || mount -t binfmt_misc binfmt_misc $formats || true
if [ ! -e $formats/qemu-aarch64 ]; then
  # Files that begin as an ELF program for this processor; F: qemu is opened now, so that a chroot needs no copy of it.
  printf '%s' ":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:$qemu:F" \
    > $formats/register || {
    echo "error: the kernel does not start ARM programs by qemu: install binfmt-support, or run this as root" >&2
    exit 3
  }
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
# As pip would install it there.
"$folder/python/bin/pip" install -q --no-cache-dir --no-deps --only-binary=:all: --platform "$(basename "${wheel##*-}" .whl)" \
  --target "$folder/site" "$wheel"
export QEMU_LD_PREFIX=$sysroot
program="$folder/site/bin/peft-tune"
readelf -h "$program" | grep -q 'Machine: *AArch64' || { echo "error: the wheel's program is not for 64-bit ARM" >&2 && exit 1; }
cd "$folder"
"$program" --version
"$program" --help > help.txt
grep -q "^ *search " help.txt
# Its own files, in a search that is as short as can be: a machine is measured for each precision.
"$program" quickstart --dry-run > dry.txt 2> dry.log || { cat dry.log && exit 1; }
space=peft-tune-quickstart/short.yaml
sed -e 's/^\( *\)training_epochs: .*/\1training_tokens: 1k/' -e 's/^\( *profile_steps\): .*/\1: 1/' -e 's/^\( *profile_warmup\): .*/\1: 1/' \
  -e 's/^\( *precision\): .*/\1: fp32/' \
  peft-tune-quickstart/quickstart.yaml > "$space"
echo 'confirm: none' >> "$space"
started=$SECONDS
"$program" search "$space" --trials 1 > search.txt 2> search.log || { cat search.log && exit 1; }
grep '^\* recommended: trial ' search.txt || { cat search.txt search.log && exit 1; }
echo "a search of one trial under qemu: $((SECONDS - started)) s"
# `doctor` would measure the machine for all precisions: what the search measured of it is enough.
"$program" query "select threads, memory_bytes_per_s > 0 from ceiling" --format csv | grep -q '^[1-9][0-9]*,1$' ||
  { echo "error: the search kept nothing of this machine" >&2 && exit 1; }
"$program" export --format recipe --output chosen > export.txt
sed -i 's/^\( *\)epochs: .*/\1steps: 2/' chosen/recipe.yaml
started=$SECONDS
"$program" train chosen/recipe.yaml --output adapter --json > train.txt 2> train.log || { cat train.log && exit 1; }
[ -s adapter/adapter_model.safetensors ]
# The loss is a number: JSON has no others.
tail -1 train.txt | python3 -c 'import json, sys; end = json.load(sys.stdin); assert end["ending"] == "finished" and 0 < end["training_loss"] < 20, end'
echo "a training of two steps under qemu: $((SECONDS - started)) s"
