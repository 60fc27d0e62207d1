# Entry points. Each target is one line: the work is in scripts/, images/ and tests/cluster/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help test lint

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## Run every check: lint, generated files, unit tests, API server, cluster
	@scripts/test

lint: ## Format check, clippy, licences and bans
	@scripts/lint
