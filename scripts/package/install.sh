#!/bin/sh
# Installs what lies beside this script: program, manual pages and completions. Says what is wrong where the program cannot
# run on this system.
#
#     ./install.sh            # below ~/.local
#     ./install.sh /usr/local
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:-${HOME:?name a folder to install into}/.local}

elsewhere="Run the container image, or build the program on this system: \`cargo install --path .\` in its sources."
if ! said=$("$here/peft-tune" --version 2>&1); then
  case $said in
  *GLIBC_*)
    # The loader names each version that it misses.
    needed=$(printf '%s\n' "$said" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -t. -k1,1n -k2,2n | tail -1)
    present=$(getconf GNU_LIBC_VERSION 2> /dev/null | cut -d' ' -f2) || present=
    echo "error: peft-tune needs the C library glibc $needed or newer, and this system has ${present:-an older one}." >&2
    [ "$needed" != 2.28 ] || echo "Debian 10, Ubuntu 20.04, RHEL 8 and what came after them have it." >&2
    echo "$elsewhere" >&2
    ;;
  *)
    echo "error: peft-tune does not start on this system ($(uname -sm)): $said" >&2
    if [ -n "$(find /lib -maxdepth 1 -name 'ld-musl-*' 2> /dev/null)" ]; then
      echo "It needs the C library glibc, and this system has musl." >&2
    fi
    echo "$elsewhere" >&2
    ;;
  esac
  exit 1
fi

put() {
  { mkdir -p "$2" && cp "$here/$1" "$2/${3:-}"; } || {
    echo "error: cannot write to $2: name another folder, as in \`./install.sh \$HOME/.local\`" >&2
    exit 1
  }
}
put peft-tune "$prefix/bin"
for page in "$here"/man/man1/*; do put "man/man1/$(basename "$page")" "$prefix/share/man/man1"; done
put completions/peft-tune.bash "$prefix/share/bash-completion/completions" peft-tune
put completions/_peft-tune "$prefix/share/zsh/site-functions"
put completions/peft-tune.fish "$prefix/share/fish/vendor_completions.d"
echo "$said is installed below $prefix"
case ":${PATH:-}:" in *":$prefix/bin:"*) ;; *) echo "$prefix/bin is not in PATH: start it as $prefix/bin/peft-tune" ;; esac
