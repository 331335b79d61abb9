#!/usr/bin/env bash
# Reduces DejaVu Sans to the characters that charts show. Needs `pip install fonttools` and Debian's fonts-dejavu-core.
set -euo pipefail
cd "$(dirname "$0")"
for font in DejaVuSans DejaVuSans-Bold; do
  pyftsubset "/usr/share/fonts/truetype/dejavu/$font.ttf" --output-file="$font.ttf" --layout-features='' --no-hinting \
    --unicodes="U+20-7E,U+A0-17F,U+370-3FF,U+400-45F,U+2010-2026,U+2030,U+2190-2193,U+2605,U+25CF,U+25CB,U+00D7,U+2212,U+2264,U+2265"
done
