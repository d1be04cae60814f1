#!/usr/bin/env bash
# Builds and runs the demo. All logic is in hack/demo/*.go.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v go >/dev/null || { echo "make demo needs Go 1.26 or newer: install it and put it on the PATH" >&2; exit 1; }
echo "building the demo (the first time compiles the Kubernetes client for a minute or two)"
go build -o bin/demo ./hack/demo
exec bin/demo ${DEMO_KEEP:+-keep} "$@"
