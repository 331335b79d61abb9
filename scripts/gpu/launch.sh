#!/bin/sh
# Starts peft-tune with NVIDIA support: finds the CUDA libraries that it is linked to and the driver, or says which one is
# missing and where it looked. It lies beside `peft-tune.bin` in the package, or in the environment into which the wheel was
# installed, and takes the same arguments.
here=$(dirname "$(readlink -f "$0")")
program="$here/peft-tune.bin"

# Folders that may hold libraries: what the user set, the package, a toolkit, the wheels of the Python at hand.
folders() {
  echo "${LD_LIBRARY_PATH:-}" | tr ':' '\n'
  echo "$here/lib"
  # The wheels beside this one.
  for folder in "$(dirname "$here")"/lib/python3*/site-packages/nvidia/*/lib; do [ -d "$folder" ] && echo "$folder"; done
  for root in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-* /opt/cuda; do
    [ -n "$root" ] && printf '%s\n' "$root/lib64" "$root/lib" "$root/targets/x86_64-linux/lib"
  done
  for root in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
    [ -n "$root" ] && for folder in "$root"/lib/python3*/site-packages/nvidia/*/lib; do echo "$folder"; done
  done
  for python in python3 python; do
    command -v "$python" >/dev/null 2>&1 && "$python" - 2>/dev/null <<'PYTHON'
import glob, site, sys
for root in [*site.getsitepackages(), site.getusersitepackages(), *sys.path]:
    for folder in sorted(glob.glob(f"{root}/nvidia/*/lib")):
        print(folder)
PYTHON
  done
  # Where containers mount the driver.
  printf '%s\n' /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/wsl/lib
}

looked=$(folders | awk 'length && !seen[$0]++')

# Prints the folder of the first match of a library's name; `system` where the loader knows it.
find_library() {
  for folder in $looked; do
    if [ -e "$folder/$1" ]; then echo "$folder"; return 0; fi
  done
  if ldconfig -p 2>/dev/null | grep -q "[[:space:]]$1 "; then echo system; return 0; fi
  for folder in /usr/lib/x86_64-linux-gnu /usr/lib64 /lib64 /usr/lib; do
    if [ -e "$folder/$1" ]; then echo system; return 0; fi
  done
  return 1
}

# The archive says which C library its program was linked for; of a wheel pip knows that before it installs it.
if [ -r "$here/glibc" ]; then
  needed=$(cat "$here/glibc")
  present=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)
  if [ -n "$present" ] && [ "$(printf '%s\n' "$needed" "$present" | sort -V | head -n 1)" != "$needed" ]; then
    echo "error: this program needs the C library glibc $needed or newer, and this system has $present." >&2
    echo "Run it in a container of a newer system, or build it here with \`--features cuda\`." >&2
    exit 1
  fi
fi

path=
for library in libcuda.so.1 libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libcurand.so.10 libnvrtc.so.13; do
  if ! folder=$(find_library "$library"); then
    echo "error: $library is missing." >&2
    if [ "$library" = libcuda.so.1 ]; then
      echo "It is part of the NVIDIA driver: install the driver (580 or later), or take the program without NVIDIA support." >&2
    else
      echo "It is part of CUDA 13: \`pip install nvidia-cuda-runtime nvidia-cublas nvidia-curand nvidia-cuda-nvrtc\`, or" >&2
      echo "activate the Python environment that has PyTorch for CUDA 13, or name a toolkit in CUDA_HOME." >&2
    fi
    echo "Looked in the loader's own folders and in:" >&2
    for folder in $looked; do echo "  $folder" >&2; done
    exit 1
  fi
  case "$folder:$path:" in system:* | *":$folder:"*) ;; *) path="$path${path:+:}$folder" ;; esac
done

# Profiles look for this one themselves, in fewer places.
if folder=$(find_library libcupti.so.13); then
  case "$folder:$path:" in system:* | *":$folder:"*) ;; *) path="$path${path:+:}$folder" ;; esac
fi

LD_LIBRARY_PATH="$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$program" "$@"
