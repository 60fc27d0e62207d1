# Entry points. Each target is one line: the work is in scripts/, images/ and tests/cluster/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help quickstart test lint generate verify bench soak cluster-up cluster-down images clean

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: ## From nothing to tool calls on record, on a cluster of this machine
	@scripts/quickstart

test: ## Every check: lint, generated files, unit tests, API server, cluster
	@scripts/test

lint: ## Format check, clippy, licences and bans
	@scripts/lint

generate: ## Write CRDs, manifests and what else is generated
	@scripts/generate .

verify: ## Fail if a generated file is out of date
	@scripts/verify

bench: ## Measure calls and cold starts, and print the figures
	@scripts/bench

soak: ## Calls under load for a long time, with failures
	@scripts/soak

cluster-up: ## Start the cluster of this machine (CLUSTER=name for another beside it)
	@tests/cluster/cluster up

cluster-down: ## End it and leave nothing behind
	@tests/cluster/cluster down

images: ## Build the release and pack the images; prints the archives
	@scripts/build-release && images/build awaken mcp-servers

clean: ## Remove what is built here; the cache outside the checkout stays
	@tests/cluster/cluster down 2>/dev/null; tests/cluster/cluster down --api-only 2>/dev/null; rm -rf .state && cargo clean
