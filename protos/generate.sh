#!/usr/bin/env bash
# Writes the Python stubs, their types, and Envoy's descriptor set from protos/. usage: protos/generate.sh [OUT_DIR]
# The compiler is pinned apart from the runtime: code from protobuf 6.31 runs on runtimes 6.33 and 7 alike (ADR 0002).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-.}
venv=.venv-proto
if [ ! -x "$venv/bin/protoc-gen-mypy" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  # The versions stand in pyproject.toml, as the extra `proto`.
  "$venv/bin/python" -c 'import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["proto"], sep="\n")' > "$venv/requirements.txt"
  "$venv/bin/pip" install -q -r "$venv/requirements.txt"
fi
googleapis=$("$venv/bin/python" -c 'import google.api, pathlib; print(pathlib.Path(google.api.__path__[0]).parents[1])')
mkdir -p "$out"
PATH="$venv/bin:$PATH" "$venv/bin/python" -m grpc_tools.protoc -Iprotos -I"$googleapis" \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" \
  protos/quire/*/v1/*.proto
# Messages without services need no grpc stub.
for stub in "$out"/quire/*/v1/*_pb2_grpc.py; do
  grep -q 'Stub' "$stub" || rm "$stub" "${stub}i"
done 2>/dev/null || true
"$venv/bin/python" -m grpc_tools.protoc -Iprotos -I"$googleapis" --include_imports \
  --descriptor_set_out="$out/quire/http_apis.binpb" \
  protos/quire/{openai/v1/openai,anthropic/v1/anthropic,ollama/v1/ollama,kserve/v1/kserve,documents/v1/documents}.proto
