# shellcheck shell=bash
# Sees to a CUDA toolkit, whose wheels have 1.2 GB. Ends with status 3 where there is no room for it and a build (6 GB), or it cannot
# be installed within ten minutes.
if [ "$(df --output=avail -k . | tail -1)" -lt 6000000 ]; then
  echo "6 GB are needed for the CUDA toolkit and a build with it"
  exit 3
fi
timeout 600 bash -c '. scripts/gpu/cuda-toolkit.sh && nvcc --version > /dev/null' || {
  echo "the CUDA toolkit cannot be installed"
  exit 3
}
