#!/usr/bin/env bash
# Runs every test of the project with the race detector. The controller's tests need a real etcd and
# kube-apiserver; they are taken from KUBEBUILDER_ASSETS, else downloaded by setup-envtest, else built.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m== %s\033[0m\n' "$*"; }

command -v go >/dev/null || { echo "make test needs Go 1.26 or newer: install it and put it on the PATH" >&2; exit 1; }
cc=${CC:-gcc}
command -v "$cc" >/dev/null || { echo "make test runs with the race detector, which needs a C compiler: apt-get install gcc libc6-dev (or set CC)" >&2; exit 1; }

assets() {
	if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
		[ -x "$KUBEBUILDER_ASSETS/kube-apiserver" ] || { echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no kube-apiserver" >&2; exit 1; }
		return
	fi
	if [ ! -x bin/k8s/kube-apiserver ] || [ ! -x bin/k8s/etcd ] || [ ! -x bin/k8s/kubectl ]; then
		say "looking for etcd and kube-apiserver to download (30 s at most)"
		local dir
		if dir=$(cd hack/tools && timeout 30 go tool setup-envtest use 1.37.x -p path --bin-dir "$PWD/../../bin/envtest" 2>/dev/null) && [ -x "$dir/kube-apiserver" ]; then
			export KUBEBUILDER_ASSETS=$dir
			return
		fi
		say "not to be downloaded here: building etcd, kube-apiserver and kubectl once (about seven minutes on two cores)"
		make --no-print-directory bin/localcluster
		bin/localcluster build --only etcd,kube-apiserver,kubectl
	fi
	export KUBEBUILDER_ASSETS=$PWD/bin/k8s
}

assets
say "etcd and kube-apiserver from ${KUBEBUILDER_ASSETS#"$PWD"/}"
say "go test -race (the first run compiles for some minutes)"
export CGO_ENABLED=1
# The end-to-end suite needs a whole cluster and is run by `make e2e`.
go test -race ${TESTFLAGS:-} $(go list ./... | grep -v /test/e2e)
say "hack/localcluster (a module of its own)"
(cd hack/localcluster && CGO_ENABLED=0 go test ./...)
