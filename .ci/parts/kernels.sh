# Every kernel compiled by NVRTC, whose wheel has 100 MB (status 3 where it cannot be had); those on tensor cores run beside Triton's.
set -euo pipefail
command -v python3 > /dev/null || exit 3
scripts/kernels/compile_kernels.py
timeout 300 python3 -m venv "$PARTS_TOOLS/triton"
timeout 300 "$PARTS_TOOLS/triton/bin/pip" install -q --no-cache-dir numpy triton==3.9.0 || exit 3
PATH="$PARTS_TOOLS/triton/bin:$PATH" scripts/kernels/check_ptx.py
