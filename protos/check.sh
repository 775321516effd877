#!/usr/bin/env bash
# Lints protos/ and compares it with the last release. usage: protos/check.sh [PROTOS_DIR]
# buf reads the descriptors that the pinned compiler writes, so it needs no network and parses no files itself.
set -euo pipefail
cd "$(dirname "$0")/.."
. protos/tools.sh
protos=${1:-protos}
image=$(mktemp --suffix=.binpb)
trap 'rm -f "$image"' EXIT
compile "$protos" --include_imports --include_source_info --descriptor_set_out="$image" "$protos"/quire/*/v1/*.proto
buf() {
  "$venv/bin/buf" "$@" --config protos/buf.yaml --path quire
}
status=0
buf lint "$image" || status=1
buf breaking "$image" --against protos/last_release.binpb || status=1
[ $status = 0 ] || echo "protos/ breaks the rules of protos/buf.yaml, or programs made from the last release's protos: see ADR 24"
exit $status
