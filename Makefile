# `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X main.version=$(VERSION)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/triggerd
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/triggerd ./cmd/triggerd

.PHONY: demo
demo: build ## Watch real GitHub deliveries fire two triggers (embedded store)
	TRIGGERD_MONGO_URI= bin/triggerd demo

.PHONY: testdb
testdb: ## Start the test database, where one is needed
	@go run ./internal/testdb/start

.PHONY: test
test: testdb ## All tests: unit, both stores, end to end; with the race detector
	go test -race -timeout 15m ./...

.PHONY: bench-growth
bench-growth: build testdb ## What a million rows, a backlog and 10,000 tenants cost (GROWTH=flags)
	@if [ -z "$${TRIGGERD_MONGO_URI:-}" ]; then TRIGGERD_MONGO_URI=$$(scripts/testdb uri); export TRIGGERD_MONGO_URI; fi; \
	bin/triggerd bench-growth $(GROWTH)

.PHONY: lint
lint: bin/golangci-lint ## Lint, and hold the import direction
	bin/golangci-lint run --allow-parallel-runners ./...

.PHONY: fmt
fmt: bin/golangci-lint ## Format
	bin/golangci-lint fmt ./...

.PHONY: docs
docs: ## Write what of docs/ is made from the code
	go generate ./pkg/trigger ./pkg/server/apply ./cmd/triggerd
	go run ./internal/openapi > docs/openapi.yaml.new && mv docs/openapi.yaml.new docs/openapi.yaml
	$(MAKE) internal/apiclient/client.gen.go

# The client of the committed document, for tests: see internal/apiclient.
internal/apiclient/client.gen.go: docs/openapi.yaml internal/apiclient/oapi-codegen.yaml bin/oapi-codegen
	bin/oapi-codegen -config internal/apiclient/oapi-codegen.yaml $< > $@.new && mv $@.new $@

.PHONY: client-check
client-check: bin/oapi-codegen ## See that the generated client is that of docs/openapi.yaml
	bin/oapi-codegen -config internal/apiclient/oapi-codegen.yaml docs/openapi.yaml | cmp - internal/apiclient/client.gen.go
	bin/oapi-codegen -generate types,client -package all docs/openapi.yaml | gofmt -l

# Pinned in a module of its own, outside the product's module graph. A cold
# build takes about two minutes.
bin/golangci-lint: tools/go.mod
	@mkdir -p bin
	cd tools && go build -o ../bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/oapi-codegen: tools/go.mod
	@mkdir -p bin
	cd tools && go build -o ../bin/oapi-codegen github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen
