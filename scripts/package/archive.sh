#!/usr/bin/env bash
# Packs a program with its manual pages and shell completions into one archive, with its checksum beside it.
#
#     scripts/package/archive.sh PROGRAM FOLDER                        # FOLDER/peft-tune-VERSION-TARGET.tar.xz
#     scripts/package/archive.sh PROGRAM FOLDER TARGET SAME_PROGRAM    # for another processor: the same program for this one
#
# The same program gives the same bytes. XZ_OPT=-0 packs faster, for tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:?the program}
mkdir -p "${2:?folder for the archive}"
output=$(realpath "$2")
target=${3:-$(rustc -vV | sed -n 's/^host: //p')}
# Writes the pages: runs here.
speaker=$(realpath "${4:-$program}")
version=$("$speaker" --version | cut -d' ' -f2)
name="peft-tune-$version-$target"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
package="$folder/$name"
mkdir -p "$package/completions"
install -m 755 "$program" "$package/peft-tune"
# Where no strip knows the processor, the program stays as it is.
strip "$package/peft-tune" 2> /dev/null || "${target%%-*}-linux-gnu-strip" "$package/peft-tune" 2> /dev/null || true
install -m 755 scripts/package/install.sh "$package/"
install -m 644 LICENSE README.md CHANGELOG.md "$package/"
"$speaker" man "$package/man/man1" > /dev/null
"$speaker" completions bash > "$package/completions/peft-tune.bash"
"$speaker" completions fish > "$package/completions/peft-tune.fish"
"$speaker" completions zsh > "$package/completions/_peft-tune"
date=$(git log -1 --format=%ct 2> /dev/null || stat -c %Y "$program")
tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$date" --mode=u+rw,go+r-w -c "$name" |
  xz -T0 > "$output/$name.tar.xz"
cd "$output"
sha256sum "$name.tar.xz" > "$name.tar.xz.sha256"
ls -l "$name.tar.xz"
