#!/usr/bin/env bash
# Does a release's tag say the version that the program has, and does the changelog have a section of it?
#
#     scripts/package/version.sh v0.1.0
set -euo pipefail
cd "$(dirname "$0")/../.."
tag=${1:?the tag}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
if [ "$tag" != "v$version" ]; then
  echo "error: the tag is $tag and the version in Cargo.toml $version: tag v$version, or change the version" >&2
  exit 2
fi
if ! grep -q "^## $version\b" CHANGELOG.md; then
  echo "error: CHANGELOG.md has no section \`## $version\`: give \`## Unreleased\` that name and the date" >&2
  exit 2
fi
echo "$version"
