# Every tool of `peft-tune mcp`, called by the protocol's own client.
set -euo pipefail
command -v python3 > /dev/null || exit 3
python3 -m venv "$PARTS_TOOLS/mcp"
timeout 120 "$PARTS_TOOLS/mcp/bin/pip" install -q --no-cache-dir 'mcp==2.3.0' || exit 3
cargo build --quiet --locked --bin peft-tune
"$PARTS_TOOLS/mcp/bin/python" scripts/peers/mcp_client.py --binary "${CARGO_TARGET_DIR:-target}/debug/peft-tune" --trials 2
