#!/usr/bin/env bash
# Takes the bill of materials (CycloneDX) out of a wheel: every crate that its program is built from, with version and licence.
#
#     scripts/package/sbom.sh WHEEL FILE.cdx.json
set -euo pipefail
python3 - "${1:?a wheel}" "${2:?the file to write}" <<'PYTHON'
import json, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    found = [name for name in wheel.namelist() if name.endswith(".cyclonedx.json")]
    if len(found) != 1:
        sys.exit(f"error: {sys.argv[1]} has {len(found)} bills of materials: build it with scripts/package/wheels.sh")
    bill = json.loads(wheel.read(found[0]))
crates = {one["name"] for one in bill["components"]}
missing = {"peft-tune-core", "candle-core", "sqlx", "tokio"} - crates
if missing:
    sys.exit(f"error: the bill of materials lacks {sorted(missing)}")
with open(sys.argv[2], "w") as file:
    json.dump(bill, file, indent=1)
print(f"{sys.argv[2]}: {len(crates)} crates")
PYTHON
