#!/usr/bin/env bash
# Writes the Python stubs, their types, and the descriptor set of the router's services, of which Envoy needs the messages and
# the router's documentation the comments. usage: protos/generate.sh [OUT_DIR]
# The compiler is pinned apart from the runtime: code from protobuf 6.31 runs on runtimes 6.33 and 7 alike (ADR 0002).
set -euo pipefail
cd "$(dirname "$0")/.."
. protos/tools.sh
out=${1:-.}
mkdir -p "$out"
compile protos --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" \
  protos/quire/*/v1/*.proto
# Messages without services need no grpc stub.
for stub in "$out"/quire/*/v1/*_pb2_grpc.py; do
  grep -q 'Stub' "$stub" || rm "$stub" "${stub}i"
done 2>/dev/null || true
compile protos --include_imports --include_source_info --descriptor_set_out="$out/quire/http_apis.binpb" \
  protos/quire/{anthropic,documents,inference,kserve,ollama,openai}/v1/*.proto
