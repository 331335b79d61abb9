#!/usr/bin/env bash
# Builds a container image of an archive, or of a wheel with NVIDIA support, and tries it.
#
#     scripts/package/image.sh dist/peft-tune-VERSION-TARGET.tar.xz NAME
#     scripts/package/image.sh --cuda dist/peft_tune_cuda-VERSION-TAG.whl NAME
#
# Takes docker, podman or buildah, whichever is there; BUILDER names one. BASE names another image to build on.
set -euo pipefail
cd "$(dirname "$0")/../.."
file=scripts/package/images/Dockerfile argument=ARCHIVE
if [ "${1:-}" = --cuda ]; then
  file=scripts/package/images/cuda.Dockerfile argument=WHEEL
  shift
fi
source=$(realpath "${1:?an archive or a wheel}")
name=${2:?name of the image}
builder=${BUILDER:-}
for one in docker podman buildah; do
  [ -n "$builder" ] || ! command -v $one > /dev/null || builder=$one
done
[ -n "$builder" ] || { echo "error: no docker, podman or buildah is here: install one" >&2 && exit 3; }
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp "$source" "$context/"
"$builder" build ${BASE:+--build-arg "BASE=$BASE"} --build-arg "$argument=$(basename "$source")" -t "$name" -f "$file" "$context"

# Runs the program in the image as a user that the image does not know and whose home cannot be written to.
if [ "$builder" = buildah ]; then
  container=$(buildah from "$name")
  trap 'rm -rf "$context"; buildah rm "$container" > /dev/null' EXIT
  in_image() { buildah run --user 4321:4321 "$container" -- peft-tune "$@"; }
else
  in_image() { "$builder" run --rm --user 4321:4321 "$name" "$@"; }
fi
if [ $argument = WHEEL ]; then
  # No driver is needed to find out that there is none.
  in_image --version 2> "$context/said" || grep -q 'libcuda.so.1 is missing' "$context/said" || { cat "$context/said" && exit 1; }
  cat "$context/said"
else
  in_image --version
  in_image quickstart --trials 2 --time 20s > "$context/said" 2> "$context/log" || { cat "$context/log" && exit 1; }
  grep '^\* recommended: trial ' "$context/said"
fi
