.DEFAULT_GOAL := help

# Each module is built on its own, as for its users. Targets other than fmt and bench do not change
# the checkout.
export GOWORK := off

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## run the flash sale, without a lock and under dlock; ARGS="--url …" adds flags
	@go build -C cmd/dlock -o "$(CURDIR)/.bin/dlock" . && exec .bin/dlock demo $(ARGS)

.PHONY: quick
quick: ## in a minute: vet, staticcheck, unit tests and laws for the library, memory and file
	@exec scripts/check.sh quick

.PHONY: test
test: ## in about twenty minutes, twice that on a slow machine: all that CI runs, every module with the race detector, every service on real servers; ONLY=etcd runs one service, ONLY=units the tests that need none
	@exec scripts/check.sh test $(ONLY)

.PHONY: long
long: ## before a release and after a change to a protocol: all laws on all set-ups, long histories, long storms
	@exec scripts/check.sh long $(ONLY)

.PHONY: storm
storm: ## attack a backend while servers, networks and processes fail, and draw what happened: BACKEND=redis MINUTES=10 SEED=1 (docs/storm.md)
	@go build -C conformance/containers -race -o "$(CURDIR)/.bin/storm" ./storm && \
	  TESTCONTAINERS_RYUK_DISABLED=true TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1 exec .bin/storm \
	  -backend "$(or $(BACKEND),memory)" -minutes "$(or $(MINUTES),1)" -seed "$(or $(SEED),0)" $(ARGS)

.PHONY: mutants
mutants: ## prove the tests by planted bugs, each of which one of them has to catch; ONLY=mysql plants those of a part
	@go run ./conformance/mutants -only "$(ONLY)"

.PHONY: bench
bench: ## in some minutes, on a quiet machine: measure dlock and its peers side by side; ARGS="-on redis -what handoffs" selects
	@go build -C bench -o "$(CURDIR)/.bin/bench" . && exec .bin/bench -page docs/performance.md $(ARGS)

.PHONY: scale
scale: ## in some twelve minutes, on a quiet machine: measure whether costs stay flat with 1,000 clients, 64 processes, 10,000 names, 5,000 waiters and readers; ARGS="-on redis -what week" selects (docs/scale.md)
	@go build -C conformance/containers -o "$(CURDIR)/.bin/scale" ./scale && \
	  TESTCONTAINERS_RYUK_DISABLED=true TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1 exec .bin/scale \
	  -page docs/scale.md $(ARGS)

.PHONY: lint
lint: ## check formatting, go vet (also for macOS and Windows) and staticcheck, in every module
	@exec scripts/check.sh lint

.PHONY: fmt
fmt: ## format the code
	@gofmt -w .

.PHONY: images
images: ## a fallback where images cannot be pulled: build those of the servers from Debian packages (make test does that by itself)
	@scripts/images.sh
