#!/usr/bin/env bash
# Generates the Go code of protos/quire/inference in examples/go/protos, as module quire.local/protos. It needs protoc
# and:
#   go install google.golang.org/protobuf/cmd/protoc-gen-go@latest google.golang.org/grpc/cmd/protoc-gen-go-grpc@latest
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p protos
protoc -I../../protos --go_out=protos --go_opt=module=quire.local/protos \
  --go-grpc_out=protos --go-grpc_opt=module=quire.local/protos ../../protos/quire/inference/v1/*.proto
printf 'module quire.local/protos\n\ngo 1.24\n' > protos/go.mod
if [ -z "${OFFLINE:-}" ]; then
  (cd protos && go mod tidy)
  go mod tidy
fi
