#!/usr/bin/env bash
# Makes today's protos the ones that later changes must not break. To be run when a version is released (ADR 24).
set -euo pipefail
cd "$(dirname "$0")/.."
. protos/tools.sh
compile protos --include_imports --descriptor_set_out=protos/last_release.binpb protos/quire/*/v1/*.proto
