#!/usr/bin/env bash
# Installs the operator as `make demo` does, then runs the end-to-end suite against it.
# A spec that fails is tried once more and reported as flaky: two processors run the cluster and the load.
# E2E_KEEP=1 leaves the cluster up. FOCUS=regexp runs a part.
set -euo pipefail
cd "$(dirname "$0")/.."
go build -o bin/demo ./hack/demo
bin/demo -install-only -env bin/e2e.env
# shellcheck disable=SC1091
. bin/e2e.env
finish() {
	status=$?
	if [ "$status" -ne 0 ]; then
		echo "== the operator's last lines"
		"$SLUICE_KUBECTL" -n sluice-system logs -l app.kubernetes.io/name=sluice --tail=60 --prefix || true
	fi
	if [ "${E2E_KEEP:-}" != 1 ]; then bin/demo -down || true; fi
	exit $status
}
trap finish EXIT
go test ./test/e2e -timeout "${E2E_TIMEOUT:-30m}" -count=1 -v -ginkgo.v -ginkgo.flake-attempts=2 ${FOCUS:+-ginkgo.focus "$FOCUS"}
