# Targets for people and for .ci/run. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Arguments for the program that a target starts: make run ARGS=--once
ARGS ?=

.PHONY: help
help: ## this list
	@echo "Tandem: an HTTP gateway for disaggregated LLM serving"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

.PHONY: run
run: build ## start the demo: simulated engines and the gateway on 127.0.0.1:8080 (ARGS=--once ends by itself)
	bin/tandem-lab demo $(ARGS)

# Functions begin where a line of the processor's cache does: a request runs through much code, most of it once, and so
# fetches a twentieth less of it (make instructions, misses of the cache for instructions).
.PHONY: build
build: deps-build ## build bin/tandem, the gateway, and bin/tandem-lab, what judges it
	go build -ldflags=-funcalign=64 -o bin/ ./cmd/tandem ./cmd/tandem-lab

# Tests of one package that run at once: many wait for what hangs on purpose, and need no core.
PARALLEL ?= 8

# Short-lived compilers and tests spend a tenth of their time collecting garbage: GOGC=400
# leaves more of it lying, in some 2 GB. The race detector lets a program sleep for a second
# before it ends, for races that are still to come: 50 ms are as good, in some fifty programs.
TESTENV = GOGC=400 GORACE=atexit_sleep_ms=50

# The tests of the whole gateway take longest, so that they begin first.
LONGEST = ./cmd/internal/serving

# What servers do first decides here, so that engines take a real one's time: alone on the
# machine, without the race detector.
ALONE = Test(Agents|Pieces)_Siblings

# A test that failed runs once more with nothing beside it: real sockets on a machine where six
# packages share two cores miss a deadline now and then. The last lines name it; what fails twice
# fails, and so does a data race at once.
AGAIN = --format standard-quiet --rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-abort-on-data-race --rerun-fails-run-root-test

# Each run of a simulator is one goroutine, and computes ten times as long with the race detector.
SIMULATORS = ./loadtest/policy ./loadtest/scaling

# With the race detector sockets are those of package net, so that these run without it too.
SOCKETS = ./pd/enginehttp/...

# The race detector allocates on its own. The numbers are exact, so that no machine is too busy for them.
ALLOCATIONS = -run Allocat ./gateway ./kvstate

.PHONY: test
test: deps-test ## all tests once, with the race detector but for the simulators (<= 10 min cold)
	$(TESTENV) $$(.ci/tool gotestsum) $(AGAIN) --packages "$(LONGEST) $$(go list ./... | grep -vE '/(loadtest/(policy|scaling)|cmd/internal/serving)$$' | tr '\n' ' ')" -- -race -parallel $(PARALLEL) -timeout 25m -skip '$(ALONE)'
	go test -run '$(ALONE)' $(LONGEST)
	go test $(SIMULATORS) $(SOCKETS)
	go test $(ALLOCATIONS)

.PHONY: check
check: deps-test ## format, lint, import rule, tidy, documents, vulnerabilities, then test
	.ci/check
	$(MAKE) test

.PHONY: e2e
e2e: deps-e2e build ## drive the gateway with engines, SDKs and a Jaeger of other projects (<= 25 min cold)
	.ci/e2e-parts
	cd loadtest/e2e && go test -v -count=1 -timeout 20m .
	cd loadtest/e2e && go test -v -count=1 -timeout 10m ./monitoring
	cd loadtest/e2e && go test -v -short -count=1 -timeout 5m ./clients
	cd loadtest/e2e && go test -v -short -count=1 -timeout 5m ./envoy
	cd loadtest/e2e && go test -v -count=1 -timeout 5m ./transformers
	cd loadtest/e2e/keda && CGO_ENABLED=0 go test -v -count=1 -timeout 10m ./...
	@[ ! -x .cache/e2e/valkey-server ] || $(MAKE) valkey

.PHONY: e2e-clients
e2e-clients: deps-e2e build ## what SDKs, a proxy and a coding agent do through the gateway, as a table of clients and APIs (<= 5 min)
	.ci/e2e-parts clients
	cd loadtest/e2e && go test -v -count=1 -timeout 15m ./clients

.PHONY: e2e-envoy
e2e-envoy: deps-e2e build ## the endpoint picker behind a real Envoy: bodies, load, restarts, engines killed; prints what a request costs
	.ci/e2e-parts
	cd loadtest/e2e && go test -v -count=1 -timeout 15m ./envoy

.PHONY: docs
docs: deps-site ## build the pages of docs/ as a site, bin/docs/site, and check every link and anchor
	.ci/site/build

.PHONY: image-check
image-check: deps-e2e build ## build as deploy/Dockerfile does, and run the gateway with nothing but its image's files
	cd loadtest/e2e && go test -v -count=1 -timeout 15m -run TestDockerfile .

.PHONY: valkey
valkey: # the tests that use Redis, on Valkey
	REDIS_SERVER=$(CURDIR)/.cache/e2e/valkey-server go test -count=1 -timeout 10m -run 'Redis|Replica|Shared|Follow' ./cmd/internal/serving ./kvstate ./pools

.PHONY: keda
keda: deps-e2e build ## scale a deployment by KEDA's operator and adapter on a real control plane (<= 25 min cold)
	.ci/e2e-parts keda
	cd loadtest/e2e && go test -v -count=1 -timeout 20m ./loop

.PHONY: vllm
vllm: deps-vllm build ## drive the gateway with four servers of vLLM itself on CPUs (some 7 GB, once)
	.ci/vllm
	cd loadtest/e2e && go test -v -count=1 -timeout 40m ./vllm

.PHONY: bench
bench: deps-build ## the Go benchmarks, one second each, with allocations
	go test -run '^$$' -bench . -benchtime 1s -benchmem -timeout 20m ./...

# KINDS of requests are counted, each for some 20 s. Streams behind prompts of 220 KB are others, of a minute each: one-leg-long,
# nixl-long, vllm-0.32-long, sglang-long.
KINDS ?= one-leg nixl vllm-0.32 sglang looked-up

.PHONY: instructions
instructions: deps-instructions ## instructions, cache misses and lines of code of requests of each kind (KINDS), by package and function: alike on a busy machine (2 to 4 min)
	.ci/instructions $(KINDS)

# ROUTERS=1 measures routers of other projects too.
ROUTERS ?=

.PHONY: bench-proxy
bench-proxy: deps-proxies build ## CPU, latency and memory beside nginx, HAProxy and (ROUTERS=1) other routers; wants a quiet machine (<= 15 min)
	@[ -z "$(ROUTERS)" ] || .ci/proxybench-routers
	bin/tandem-lab bench-proxy $(if $(ROUTERS),--proxies loadtest/proxybench/routers.yaml) --json bin/proxies.json --svg bin/proxies.svg --log bin/proxies.log $(ARGS)

.PHONY: sizing
sizing: deps-test build ## what docs/sizing.md reckons with: CPU of a request, memory of a stream, work of Redis (4 min; wants a quiet machine)
	.ci/sizing

# Seeds that make sim runs: 1 for a quick look. With all traces three keep it within an hour.
SEEDS ?= $(if $(filter all,$(TRACE)),3,5)

# Scenarios that make sim runs and make chaos plays: name,name.
SCENARIO ?= all

# Traces and policies that make sim compares: all, or names with commas between them. The strongest
# policies are ours and those that are best somewhere (some 12 min on 2 quiet cores; all take some 17).
TRACE ?= loadtest/traces/mooncake_conversation.jsonl
POLICY ?= strongest

.PHONY: sim
sim: build ## compare policies on SCENARIO (all; 'agents*'), SEEDS=1 for a quick look; goes on where it was interrupted; writes bin/sim.html
	GOGC=400 bin/tandem-lab sim --trace '$(TRACE)' --scenario '$(SCENARIO)' --policy '$(POLICY)' --seeds $(SEEDS) --json bin/sim.json --report bin/sim.html --resume bin/sim.runs $(ARGS)

.PHONY: sim-autoscale
sim-autoscale: build ## compare ways of scaling both pools over two hours; writes bin/scaling.html
	bin/tandem-lab sim --autoscale --seeds $(SEEDS) --json bin/scaling.json --report bin/scaling.html

.PHONY: chaos
chaos: deps-test build ## break servers, networks and Redis under load (SCENARIO=name,name); writes bin/chaos.html (some 7 min)
	bin/tandem-lab chaos --scenario '$(SCENARIO)' --json bin/chaos.json --report bin/chaos.html

.PHONY: guards
guards: deps-test ## short forms of sim and chaos with their goals (<= 8 min)
	$(MAKE) sim SCENARIO=agents-06,lockstep,B SEEDS=1 ARGS=--goals
	$(MAKE) chaos SCENARIO=prefill-killed,decode-answers-503,engines-stopped,all-starved,redis-hangs

# How long make soak looks for what grows.
SOAK ?= 30m

.PHONY: soak
soak: build ## load for SOAK (30m): heap, goroutines and descriptors must stay flat; prints their slopes
	bin/tandem-lab soak --for $(SOAK)

# What make mutate plants faults in, and how many in each: 0 is all.
PKG ?= pd pd/api pd/connector pd/order pd/cost pd/decision pd/packing pd/enginehttp pd/evaluate pd/firsttoken pd/histogram pd/history pd/leader pd/messages pd/modelsync pd/modeltokens pd/predict pd/queue pd/replay pd/requestid pd/retry pd/scalefromzero pd/senttext pd/series pd/spans pd/transcript pools pools/address pools/breaker pools/curve pools/deadline pools/discovery pools/discovery/kube pools/drainsync pools/election pools/health pools/load pools/permodel pools/pubsub pools/replicas pools/standby kvstate kvstate/replicate kvstate/tokens kvstate/tokens/jinja autoscale gateway gateway/access gateway/live gateway/peers gateway/picker
MUTANTS ?= 60

.PHONY: mutate
mutate: deps-test build ## plant MUTANTS (60) faults in each PKG, one at a time, and count those that its tests notice
	bin/tandem-lab mutate --mutants $(MUTANTS) --json bin/mutate.json $(PKG)

# Requests that make cancels cancels.
CANCELS ?= 10000

.PHONY: cancels
cancels: deps-test ## cancel CANCELS (10000) requests at random moments: nothing may be left of any
	go test -race -count=1 -timeout 20m -v -run Cancel_ManyAtRandom ./cmd/internal/serving -cancels $(CANCELS)

.PHONY: overload
overload: build ## ask for three times what the servers can do, for four minutes, with both bindings (some 11 min; wants a machine of its own)
	bin/tandem-lab overload $(ARGS)

.PHONY: edge
edge: deps-test ## what hostile clients send: raw HTTP, control fields, ways around limits; prints case, expected, got (some 30 s)
	go test -count=1 -timeout 10m -v -run '^Test(Edge|Input)_' ./cmd/internal/serving

# Seconds that each fuzz target runs.
FUZZTIME ?= 20s

.PHONY: fuzz
fuzz: deps-build ## every fuzz target for FUZZTIME (20s) on top of its corpus
	.ci/fuzz $(FUZZTIME)

.PHONY: generate
generate: ## the Go code of *.proto, checked in (wants Debian's protobuf-compiler)
	protoc --plugin="$$(.ci/tool protoc-gen-go)" --plugin="$$(.ci/tool protoc-gen-go-grpc)" \
		--go_out=paths=source_relative:. --go-grpc_out=paths=source_relative:. \
		autoscale/keda/externalscaler/externalscaler.proto
	protoc --plugin="$$(.ci/tool protoc-gen-go)" --plugin="$$(.ci/tool protoc-gen-go-grpc)" -I pd/leader \
		--go_out=paths=source_relative:pd/leader/leaderpb --go-grpc_out=paths=source_relative:pd/leader/leaderpb leader.proto

.PHONY: clean
clean: ## remove bin and .cache (tools, parts of e2e)
	rm -rf bin .cache

.PHONY: deps-build deps-test deps-e2e deps-proxies deps-vllm deps-site deps-instructions
deps-build deps-test deps-e2e deps-proxies deps-vllm deps-site deps-instructions: deps-%:
	@.ci/deps $*
