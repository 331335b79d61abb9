# shellcheck shell=bash
# Puts a Python with PyTorch, transformers, PEFT, TRL and DeepSpeed first on the PATH, made once for all parts that source this.
# Ends with status 3 where there is no room for it (6 GB), or it cannot be installed within ten minutes.
torch="${PARTS_TOOLS:?is set by .ci/part}/torch"
if [ ! -e "$torch/made" ]; then
  if [ "$(df --output=avail -k "$PARTS_TOOLS" | tail -1)" -lt 12000000 ]; then
    echo "12 GB below $PARTS_TOOLS are needed for PyTorch"
    exit 3
  fi
  if ! { python3 -m venv "$torch" && timeout 600 "$torch/bin/pip" install -q --no-cache-dir \
    torch==2.15.0 transformers==5.23.0 peft==0.21.2 trl==1.16.0 jsonschema ruamel.yaml pytest pandas setuptools wheel; }; then
    echo "PyTorch, PEFT and TRL cannot be installed"
    exit 3
  fi
  # Its kernels are compiled where they are first used, and only its reader is; it asks for PyTorch as it is built.
  DS_BUILD_OPS=0 timeout 120 "$torch/bin/pip" install -q --no-cache-dir --no-build-isolation deepspeed==0.19.8 ||
    echo "DeepSpeed cannot be installed: its files are left out"
  touch "$torch/made"
fi
PATH="$torch/bin:$PATH"
