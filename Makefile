# make up      install what is missing, build, start a cluster on this machine
# make test    run the tests, half an hour (tiers below can be run alone); make test-all runs every test
# make bench   benchmarks with ratios and allocations
# make help    the rest

SHELL    := /bin/bash
BIN      := bin
GO       ?= go
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOFLAGS  := -trimpath -buildvcs=false
# The Kubernetes release of the libraries, which kubectl gives as its own: without one "kubectl version" fails.
RELEASE  := $(shell sed -n 's|^\tk8s.io/kubectl v0|v1|p' go.mod)
BASE     := k8s.io/component-base/version
LDFLAGS  := -s -w -X github.com/berth-dev/berth/internal/cli.version=$(VERSION) \
	-X $(BASE).gitVersion=$(RELEASE) -X $(BASE).gitMajor=1 -X $(BASE).gitMinor=$(word 2,$(subst ., ,$(RELEASE))) -X $(BASE).gitCommit= -X $(BASE).gitTreeState=clean
UPFLAGS  ?=
export CGO_ENABLED := 0
export GOFLAGS

CNI      := main/bridge ipam/host-local main/loopback meta/portmap
TOOLS    := sh cat ls env id hostname sleep seq mkdir rm touch stat grep head tee wget nslookup nc serve hog fill date readlink mounts pause look put ln stay
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: all up down build berth bundle images install test unit race e2e bench bench-up bench-agent bench-proxy bench-fleet bench-nodes soak lint generate clean help

all: build

help:
	@sed -n 's/^# //p' Makefile | head -20
	@echo "targets: up down build test test-all unit live race e2e bench bench-up bench-agent bench-proxy bench-fleet bench-nodes soak fuzz vuln cis why vm vm-test lint generate clean"

install:
	@hack/install.sh

build: berth bundle images

berth:
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/berth ./cmd/berth

# The container runtime: its own module, so that its dependencies and berth's
# never have to agree.
bundle:
	@mkdir -p $(BIN)
	cd runtime && $(GO) build -tags no_btrfs -ldflags '-s -w' -o ../$(BIN)/ ./cmd/containerd ./cmd/berth-net ./cmd/mkimage ./images/toolbox \
		github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2 $(addprefix github.com/containernetworking/plugins/plugins/,$(CNI))

images: $(BIN)/images/pause.tar $(BIN)/images/toolbox.tar

$(BIN)/pause: runtime/images/pause/pause.c
	@mkdir -p $(BIN)
	$(or $(CC),gcc) -Os -static -s -o $@ $<

$(BIN)/images/pause.tar: $(BIN)/pause | bundle
	@mkdir -p $(BIN)/images
	$(BIN)/mkimage -out $@ -name berth.dev/pause:1 -entrypoint /pause -user 65535:65535 -file /pause=$(BIN)/pause

$(BIN)/images/toolbox.tar: $(wildcard runtime/images/toolbox/*.go) | bundle
	@mkdir -p $(BIN)/images
	$(BIN)/mkimage -out $@ -name berth.dev/toolbox:1 -entrypoint /bin/toolbox -file /bin/toolbox=$(BIN)/toolbox \
		$(foreach t,$(TOOLS),-link /bin/$(t)=toolbox)

up: install build
	$(BIN)/berth up --detach $(UPFLAGS)

down:
	$(BIN)/berth down

# Fast tiers first: what needs no built binary, then the real thing.
test: install-test lint unit build live e2e

# The same with the end-to-end tests that take long (test/e2e/README.md says which and why).
.PHONY: test-all
test-all:
	$(MAKE) test BERTH_TESTS=all

.PHONY: install-test live live-crio
install-test:
	@hack/install.sh test

unit:
	$(GO) test ./internal/... ./cmd/...
	cd runtime && $(GO) vet ./...
	cd test/tools && $(GO) vet ./...

race:
	CGO_ENABLED=1 $(GO) test -race $(RACE)

# Tests that need the built runtime bundle and root.
live:
	BERTH_BUNDLE=$(CURDIR)/$(BIN) $(GO) test -count=1 -p 1 ./internal/cluster/... ./internal/agent ./internal/agent/network ./internal/agent/runtime/contract
	BERTH_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 ./berthtest

# One package at a time: each test looks at the whole host. What is left for
# test-all is printed at the end.
BERTH_TESTS ?= short
LEFT_OUT    := $(CURDIR)/$(BIN)/t/left-out
e2e:
	@mkdir -p $(BIN)/t && rm -f $(LEFT_OUT)
	BERTH_BIN=$(CURDIR)/$(BIN) BERTH_TESTS=$(BERTH_TESTS) BERTH_LEFT_OUT=$(LEFT_OUT) $(GO) test -p 1 -count=1 -timeout 60m ./test/e2e/...
	@! test -e $(LEFT_OUT) || { echo "not run in this tier (make test-all runs them):"; sed 's/^/  /' $(LEFT_OUT); }

# The same two suites against CRI-O, built from its module (some minutes).
live-crio: build
	@hack/crio-suites.sh

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./internal/...

bench-up: build
	BERTH_BIN=$(CURDIR)/$(BIN) $(GO) run ./test/bench/up

# The agent alone against the floor of direct CRI calls; the proxy at sizes.
bench-agent: build
	BERTH_BIN=$(CURDIR)/$(BIN) $(GO) run ./test/bench/agent

bench-proxy: build
	BERTH_BIN=$(CURDIR)/$(BIN) $(GO) run ./test/bench/proxy

# Thousands of hollow nodes beside a control plane; ends with PASS or FAIL.
bench-fleet: berth
	BERTH_BIN=$(CURDIR)/$(BIN) $(GO) run ./test/bench/fleet $(FLEETFLAGS)

# How late silent nodes are found: 1 of 5,000, 1,000 of 1,000, 1,000 of 5,000.
bench-nodes:
	$(GO) test ./internal/nodes/health -run '^$$' -bench Silent -benchtime 1x -timeout 20m

# An hour of pod churn: memory, goroutines and descriptors once a minute.
soak: build
	BERTH_BIN=$(CURDIR)/$(BIN) $(GO) run ./test/bench/soak

# An emulated machine with Debian's kernel, systemd and cgroup v2 (docs/vm.md).
# Slow: neither is part of `make test`.
.PHONY: vm vm-test
vm:
	@hack/install.sh vm
	test/vm/image/build.sh $(BIN)/vm

vm-test: vm build
	@mkdir -p $(BIN)/t
	for p in internal/agent/resource internal/agent/resource/topology internal/agent/shutdown internal/proxy internal/policy internal/policy/kernel internal/network test/e2e/node test/e2e/faults; do \
		$(GO) test -tags vm -c -o $(BIN)/t/$$(basename $$p).test ./$$p || exit 1; done
	$(GO) run ./test/vm test $(CHECKS)

# Every parser of bytes that others wrote, FUZZTIME each; what fails is kept
# in testdata/fuzz beside the test.
#
# Without FUZZMINIMIZE a fuzzer spends up to a minute on making each input that
# reaches new code smaller, and tries nothing else meanwhile: FuzzRead of
# internal/snapshot made 12 executions in 30 s.
FUZZTIME ?= 10m
FUZZMINIMIZE ?= 10x
.PHONY: fuzz vuln cis
fuzz:
	@grep -rl --include='*_test.go' '^func Fuzz' internal | sort | while read -r file; do \
		grep -o '^func Fuzz[A-Za-z]*' $$file | cut -c6- | while read -r target; do \
			echo "== $$(dirname $$file) $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) \
				-fuzzminimizetime $(FUZZMINIMIZE) ./$$(dirname $$file) </dev/null || exit 1; \
		done || exit 1; \
	done

# Known vulnerabilities in what berth calls. GOVULNDB is the database: an address
# (a mirror), or a copy of it as file:///path (go.dev/security/vuln/database). Where
# there is neither, OSV=DIR makes one of data/osv of a copy of
# github.com/golang/vulndb.
GOVULNDB ?= https://vuln.go.dev
VULNDB ?= $(GOVULNDB)
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.1.4
vuln:
	@mkdir -p $(BIN)/t
	GOBIN=$(CURDIR)/$(BIN)/t $(GO) install $(GOVULNCHECK)
ifneq ($(OSV),)
	$(GO) run ./hack/vulndb -osv $(OSV) -out $(BIN)/t/vulndb
endif
	@hack/vuln.sh $(CURDIR)/$(BIN)/t/govulncheck $(if $(OSV),file://$(CURDIR)/$(BIN)/t/vulndb,$(VULNDB))

# The checks of the CIS Kubernetes benchmark, sections 1 to 4, on a cluster that
# is started for it with no flags of its own.
cis: berth
	BERTH_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -v -run '^TestCIS$$' ./test/e2e/api

# The catalogue of faults: each is injected into a cluster, and `berth why` must
# name its cause. Some five minutes; BERTH_WHY=REGEXP chooses.
.PHONY: why
why: build
	BERTH_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -v -timeout 20m -run '^TestWhy$$' ./test/why

lint:
	@test -z "$$(gofmt -l cmd internal test runtime berthtest hack)" || { gofmt -l cmd internal test runtime berthtest hack; echo "run gofmt -w on these"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags vm ./internal/agent/resource/... ./internal/agent/shutdown ./internal/proxy ./test/e2e/...
	$(GO) run $(STATICCHECK) ./cmd/... ./internal/... ./test/... ./berthtest/... ./hack/...

generate:
	hack/generate.sh

clean:
	rm -rf $(BIN)
