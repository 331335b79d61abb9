#!/usr/bin/env bash
# Unpacks an archive of `archive.sh` and uses it as its reader would: checksum, program, manual, completions, installation,
# also where the C library is too old for the program.
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

./install.sh "$folder/installed"
for file in bin/peft-tune share/man/man1/peft-tune.1 share/bash-completion/completions/peft-tune share/zsh/site-functions/_peft-tune; do
  [ -s "$folder/installed/$file" ] || { echo "error: install.sh installs no $file" >&2 && exit 1; }
done
"$folder/installed/bin/peft-tune" --version > "$folder/version"
# Where nobody may write.
if ./install.sh /proc/nobody > "$folder/said" 2>&1; then
  echo "error: install.sh says that it installed where nobody can write" >&2
  exit 1
fi
grep -q '^error: cannot write to /proc/nobody/bin: name another folder' "$folder/said" || { cat "$folder/said" && exit 1; }

# A program that asks for a function of glibc 2.99, which a stand-in had when it was linked: the loader refuses it in its own
# words, and install.sh says what they mean.
if command -v cc > /dev/null; then
  mkdir "$folder/newer"
  echo 'int of_the_future(void) { return 0; }' > "$folder/newer/library.c"
  echo 'GLIBC_2.99 { global: of_the_future; };' > "$folder/newer/versions"
  echo 'int of_the_future(void); int main(void) { return of_the_future(); }' > "$folder/newer/program.c"
  cc -shared -fPIC -nostdlib -Wl,-soname,libm.so.6 "-Wl,--version-script=$folder/newer/versions" \
    -o "$folder/newer/stand-in.so" "$folder/newer/library.c"
  cc -Wl,--no-as-needed -o peft-tune "$folder/newer/program.c" "$folder/newer/stand-in.so"
  if ./install.sh "$folder/refused" 2> "$folder/said"; then
    echo "error: install.sh installed a program that cannot run" >&2
    exit 1
  fi
  grep -q '^error: peft-tune needs the C library glibc 2.99 or newer, and this system has 2' "$folder/said" || { cat "$folder/said" && exit 1; }
  [ ! -e "$folder/refused" ]
  cat "$folder/said"
fi
echo "the archive holds what it should"
