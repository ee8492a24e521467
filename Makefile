.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## the flash sale, without a lock and under dlock; ARGS="--url …" adds flags
	@go run ./cmd/dlock demo $(ARGS)

.PHONY: test
test: ## all that CI runs: lint, and every test under the race detector, in every module
	@scripts/check.sh test

.PHONY: lint
lint: ## formatting, go vet (also for macOS and Windows) and staticcheck, in every module
	@scripts/check.sh lint

.PHONY: fmt
fmt: ## format the code
	@gofmt -w .

.PHONY: images
images: ## build the images of the tests' servers from Debian's packages, where none can be pulled (make test does so by itself)
	@scripts/images.sh
