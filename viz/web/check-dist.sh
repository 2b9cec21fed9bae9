#!/bin/sh
# Fails when `dist`, which the controller embeds, is not what the sources build. Installs the locked
# packages first; needs Node 18 or later.
set -eu
cd "$(dirname "$0")"
npm ci --no-fund --no-audit --ignore-scripts
npm run --silent types
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
node build.mjs "$built"
if ! diff -r "$built" dist >/dev/null; then
  echo "viz/web/dist is not the build of its sources; run npm ci && npm run build there" >&2
  exit 1
fi
echo "viz/web/dist is the build of its sources"
