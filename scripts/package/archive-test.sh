#!/usr/bin/env bash
# Unpacks an archive of `archive.sh` and uses it as its reader would: checksum, program, manual, completions.
#
#     scripts/package/archive-test.sh ARCHIVE
set -euo pipefail
archive=$(realpath "${1:?an archive}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$(dirname "$archive")" && sha256sum --quiet -c "$(basename "$archive").sha256")
tar -xJf "$archive" -C "$folder"
cd "$folder"/*/
for file in LICENSE README.md CHANGELOG.md man/man1/peft-tune.1 man/man1/peft-tune-search.1; do
  [ -s "$file" ] || { echo "error: $file is missing or empty" >&2 && exit 1; }
done
./peft-tune --version
# Each command has its page.
for command in $(./peft-tune --help | sed -nE 's/^  ([a-z][a-z-]+)  .*/\1/p'); do
  [ "$command" = help ] || [ -s "man/man1/peft-tune-$command.1" ] || { echo "error: no manual page of $command" >&2 && exit 1; }
done
if command -v bash > /dev/null; then bash -n completions/peft-tune.bash; fi
for shell in fish zsh; do
  file=completions/peft-tune.fish
  [ $shell = fish ] || file=completions/_peft-tune
  [ -s $file ]
  if command -v $shell > /dev/null; then $shell -n $file; fi
done
echo "the archive holds what it should"
