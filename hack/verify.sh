#!/usr/bin/env bash
# Fails when generated files, go.mod or the format are stale, and says which target mends it.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=$(gofmt -l $(git ls-files '*.go'))
[ -z "$bad" ] || { printf 'not formatted (make fmt):\n%s\n' "$bad" >&2; exit 1; }

for mod in . hack/localcluster hack/tools; do
	(cd "$mod" && go mod tidy -diff >/dev/null) || { echo "$mod/go.mod is not tidy: go mod tidy" >&2; exit 1; }
done
go vet ./...

before=$(git status --porcelain)
make --no-print-directory generate >/dev/null
after=$(git status --porcelain)
[ "$before" = "$after" ] || { printf 'generated files are stale (make generate, then commit):\n%s\n' "$after" >&2; git --no-pager diff --stat >&2; exit 1; }
echo "format, go.mod, vet and generated files: good"
