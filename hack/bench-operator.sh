#!/usr/bin/env bash
# Builds the operator and measures it at 200 and 1,000 pools on a real API server (hack/benchoperator), which
# takes about fifteen minutes on two cores. etcd and kube-apiserver are taken from KUBEBUILDER_ASSETS, else
# from bin/k8s. Arguments go to the program: hack/bench-operator.sh -pools 20 -big 0 -steady 30s
set -euo pipefail
cd "$(dirname "$0")/.."

: "${KUBEBUILDER_ASSETS:=$PWD/bin/k8s}"
for program in etcd kube-apiserver; do
	[ -x "$KUBEBUILDER_ASSETS/$program" ] && continue
	echo "bench-operator needs $program: set KUBEBUILDER_ASSETS to a directory that has it, or run 'make k8s-binaries'" >&2
	exit 1
done
export KUBEBUILDER_ASSETS CGO_ENABLED=0
go build -ldflags='-s -w' -o bin/manager ./cmd/manager
go build -o bin/bench-operator ./hack/benchoperator
# exec: a Ctrl-C or a SIGTERM goes to the program, which ends what it started.
exec bin/bench-operator "$@"
