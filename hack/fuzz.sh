#!/usr/bin/env bash
# Runs every fuzz target of the project for FUZZTIME each.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${FUZZTIME:-20s}
n=0
while IFS=: read -r file name; do
	pkg=./$(dirname "$file")
	printf '\033[1m== %s %s for %s\033[0m\n' "$pkg" "$name" "$time"
	go test "$pkg" -run '^$' -fuzz "^$name\$" -fuzztime "$time"
	n=$((n + 1))
done < <(git ls-files '*_test.go' | xargs grep -oHE '^func Fuzz[A-Za-z0-9_]+' | sed 's/func //')
echo "$n fuzz targets, no failure"
