# Sluice. `make help` lists the targets; `make demo` and `make test` are the two that matter first.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Images: the registry prefix and tag of what `make images` builds and what the operator runs.
IMAGE_PREFIX ?= sluice.dev
TAG ?= dev
BINARIES := manager batcher gateway gpuworker loadgen
K8S_VERSION ?= 1.37.x
K8S_BIN := $(CURDIR)/bin/k8s
E2E_TIMEOUT ?= 30m

export CGO_ENABLED ?= 0
GO_BUILD := go build -ldflags='-s -w'

##@ General

.PHONY: help
help: ## Show this page.
	@awk 'BEGIN {FS = ":.*##"; printf "\nUsage: make \033[36m<target>\033[0m\n"} \
	  /^[a-zA-Z_0-9-]+:.*?##/ { printf "  \033[36m%-18s\033[0m %s\n", $$1, $$2 } \
	  /^##@/ { printf "\n\033[1m%s\033[0m\n", substr($$0, 5) }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Bring up a Kubernetes, install Sluice, load it until it scales and sheds, and calm down again (KUBECONFIG=... uses your cluster; DEMO_KEEP=1 leaves everything up).
	@hack/demo/run.sh

.PHONY: demo-down
demo-down: cluster-down ## Remove what `make demo` with DEMO_KEEP=1 left.

##@ Development

.PHONY: generate
generate: ## Generate deepcopy, apply configurations, CRDs, RBAC and dist/install.yaml from the sources.
	go tool controller-gen object:headerFile=hack/boilerplate.go.txt \
	  applyconfiguration:headerFile=hack/boilerplate.go.txt crd paths=./api/... \
	  output:crd:artifacts:config=config/crd/bases
	go tool controller-gen rbac:roleName=sluice-manager,fileName=role.yaml paths=./internal/controller/... output:rbac:artifacts:config=config/rbac
	@$(MAKE) --no-print-directory installer

.PHONY: verify
verify: ## Fail when generated files, go.mod or the format are stale.
	@hack/verify.sh

.PHONY: fmt
fmt: ## Format the Go sources.
	gofmt -w $$(git ls-files '*.go')

.PHONY: lint
lint: bin/golangci-lint ## Run golangci-lint, with kube-api-linter for api/.
	bin/golangci-lint run --timeout 15m ./...

bin/golangci-lint: hack/tools/go.mod
	@echo "building golangci-lint (about three minutes on two cores, once)"
	cd hack/tools && go build -o ../../bin/golangci-lint sigs.k8s.io/kube-api-linter/cmd/golangci-lint-kube-api-linter

.PHONY: test
test: ## Run every test with the race detector (needs gcc; envtest takes KUBEBUILDER_ASSETS, else downloads, else builds etcd and kube-apiserver).
	@hack/test.sh

.PHONY: fuzz
fuzz: ## Fuzz every decoder for FUZZTIME (default 20s) each.
	@hack/fuzz.sh

.PHONY: e2e
e2e: ## Run the end-to-end suite on the local cluster (or KUBECONFIG's).
	@hack/e2e.sh

.PHONY: bench
bench: ## Measure the data plane on loopback (SCENARIO=name runs one; LONG=1 adds the soak); writes bin/bench.json.
	$(GO_BUILD) -o bin/ ./cmd/batcher ./cmd/gateway ./cmd/gpuworker
	go run ./hack/bench $(if $(SCENARIO),-scenario $(SCENARIO)) $(if $(RUNS),-runs $(RUNS)) $(if $(LONG),-long) -o bin/bench.json

.PHONY: bench-operator
bench-operator: ## Measure the operator at 200 and 1,000 pools on a real API server; writes bin/bench-operator.json.
	@hack/bench-operator.sh

.PHONY: simulate
simulate: ## Replay a load through the scaling, zone and batching code (ARGS="-pool ... -trace ...").
	go run ./hack/simulate $(ARGS)

.PHONY: gpu-smoke
gpu-smoke: ## Measure service time against batch size of a Python function on this machine's GPU (GPU_SMOKE_DEVICE=cpu: on its processors).
	go run ./hack/gpusmoke $(ARGS)

##@ Build

.PHONY: build
build: ## Build every binary, static, into bin/.
	$(GO_BUILD) -o bin/ ./cmd/... ./hack/loadgen

.PHONY: images
images: ## Build the images with Docker, as $(IMAGE_PREFIX)/NAME:$(TAG).
	@for b in $(BINARIES); do docker build --target $$b -t $(IMAGE_PREFIX)/$$b:$(TAG) . || exit 1; done

.PHONY: images-local
images-local: build bin/localcluster ## Build the binaries that the local cluster packs into images.

.PHONY: installer
installer: ## Write dist/install.yaml: CRDs, RBAC and the operator in one file.
	@mkdir -p dist
	@K=$$(command -v $(K8S_BIN)/kubectl || command -v kubectl || true); \
	  if [ -z "$$K" ]; then echo "make installer needs kubectl (for kustomize): install it or run 'make k8s-binaries'" >&2; exit 1; fi; \
	  $$K kustomize config/default > dist/install.yaml

##@ Local cluster (a real Kubernetes without Docker: Debian or Ubuntu, as root)

bin/localcluster: $(shell find hack/localcluster -name '*.go' -o -name 'go.*' 2>/dev/null)
	cd hack/localcluster && go build -ldflags='-s -w' -o ../../bin/localcluster .

.PHONY: k8s-binaries
k8s-binaries: bin/localcluster ## Build Kubernetes from its Go modules into bin/k8s (once, about nine minutes on two cores).
	bin/localcluster build

.PHONY: cluster-up
cluster-up: k8s-binaries ## Start the local cluster; prints how to use it.
	bin/localcluster up

.PHONY: cluster-down
cluster-down: bin/localcluster ## Stop the local cluster and remove every trace of it.
	bin/localcluster down

.PHONY: cluster-load
cluster-load: images-local ## Pack the binaries into images and import them into the local cluster.
	bin/localcluster load $(foreach b,$(BINARIES),$(IMAGE_PREFIX)/$(b):$(TAG)=bin/$(b))

##@ Deployment (to the cluster of the current KUBECONFIG)

.PHONY: install
install: ## Install the CRDs only.
	kubectl apply --server-side -k config/crd

.PHONY: deploy
deploy: ## Install CRDs, RBAC and the operator.
	kubectl apply --server-side -k config/default

.PHONY: undeploy
undeploy: ## Remove the operator and the CRDs; every pool and tenant goes with them.
	kubectl delete --ignore-not-found -k config/default
