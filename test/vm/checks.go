package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// check is one start of a machine and what is run on it. Commands see the
// working tree as /host and the test binaries that `make vm-test` builds in
// /host/bin/t.
type check struct {
	name  string
	nodes int // NUMA nodes; 0 is one
	steps []step
	limit time.Duration
}

const (
	// slow gives tests of packets ten times their patience.
	slow = "BERTH_TEST_SLOWNESS=10 "
	// lacks begins a command that must end with what the kernel lacks.
	lacks = "says() { \"$@\" >/tmp/said 2>&1 && return 1; cat /tmp/said; grep -q 'random numbers (CONFIG_NFT_NUMGEN' /tmp/said; }; says " +
		"/host/bin/berth "
)

var checks = []check{
	{name: "cgroups", limit: 15 * time.Minute, steps: []step{
		{command: "/host/bin/t/resource.test -test.v -test.run TestUnified"},
	}},
	{name: "cluster", limit: 40 * time.Minute, steps: []step{
		// Programs start quicker from the machine's own disk.
		{command: "mkdir /opt/berth && cd /host/bin && cp -r berth containerd containerd-shim-runc-v2 bridge host-local loopback portmap " +
			"images /opt/berth"},
		{command: "cd /host/test/e2e/node && BERTH_BIN=/opt/berth BERTH_TEST_SLOWNESS=5 /host/bin/t/node.test -test.v -test.timeout 38m " +
			"-test.run '^(TestUnifiedNode|TestNodeAllocatable)$'"},
		{command: "cd /host/test/e2e/faults && BERTH_BIN=/opt/berth BERTH_TEST_SLOWNESS=5 /host/bin/t/faults.test -test.v " +
			"-test.timeout 38m -test.run '^(TestMemoryPressure|TestHungRuntime)$'"},
	}},
	{name: "numa", nodes: 2, limit: 15 * time.Minute, steps: []step{
		{command: "/host/bin/t/topology.test -test.v -test.run TestTwoNodes"},
	}},
	{name: "logind", limit: 20 * time.Minute, steps: []step{
		{command: "cat /proc/sys/kernel/random/boot_id > /var/lib/boot"},
		{command: "/host/bin/t/shutdown.test -test.v -test.run TestRealLogind", reboots: true},
		{command: "! grep -q -f /proc/sys/kernel/random/boot_id /var/lib/boot"},
	}},
	{name: "kernel", limit: 20 * time.Minute, steps: []step{
		{command: "/host/bin/t/proxy.test -test.v -test.run TestKernelWithoutModules"},
		{command: "echo install nft_numgen /bin/false >/etc/modprobe.d/hidden.conf; while grep -q ^nft_numgen /proc/modules; do rmmod " +
			"nft_numgen; sleep 0.1; done"},
		{command: lacks + "proxy --master http://127.0.0.1:1"},
		{command: lacks + "up --data-dir /tmp/up"},
	}},
	{name: "packets", limit: time.Hour, steps: []step{
		{command: "cd /host/internal/proxy && " + slow +
			"/host/bin/t/proxy.test -test.v -test.timeout 55m -test.run " +
			"'TestCheckKernel|TestKernel(Listing|Packets|Traffic|Drift|StaleFlows)$|" +
			"TestAffinity|TestNewTableInParts|TestKernelsEqualModel|TestKill'"},
	}},
	{name: "policies", limit: time.Hour, steps: []step{
		{command: "modprobe br_netfilter"},
		{command: slow + "/host/bin/t/kernel.test -test.v -test.timeout 50m"},
		{command: slow + "/host/bin/t/policy.test -test.v -test.timeout 50m"},
	}},
	{name: "network", limit: 30 * time.Minute, steps: []step{
		{command: "modprobe wireguard"},
		{command: slow + "/host/bin/t/network.test -test.v -test.timeout 25m"},
	}},
	{name: "ipvs", limit: 20 * time.Minute, steps: []step{
		{command: "modprobe ip_vs && ip link add kube-ipvs0 type dummy && ip addr add 10.96.0.10/32 dev kube-ipvs0 && ipvsadm -A -t " +
			"10.96.0.10:53 -s rr && ipvsadm -a -t 10.96.0.10:53 -r 10.244.0.5:53 -m && ipvsadm -A -t 192.0.2.1:80 -s rr"},
		{command: "/host/bin/berth proxy --cleanup-kube-proxy"},
		{command: "! ip link show kube-ipvs0 && test \"$(ipvsadm-save -n)\" = '-A -t 192.0.2.1:80 -s rr'"},
	}},
}

// test runs the named checks, or all, one machine after another, and says how
// each ended.
func test(ctx context.Context, m *vm, names []string) (int, error) {
	failed, ran := 0, 0
	for _, c := range checks {
		if len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		ran++
		began := time.Now()
		var out bytes.Buffer
		status, err := c.run(ctx, m, io.MultiWriter(&out, os.Stdout))
		word := "ok"
		if err != nil || status != 0 {
			failed++
			word = fmt.Sprintf("FAIL (status %d, %v; console: %s)", status, err, c.on(m).console())
		}
		fmt.Printf("--- %s: %s (%.0fs)\n", c.name, word, time.Since(began).Seconds())
	}
	fmt.Printf("%d passed, %d failed\n", ran-failed, failed)
	if failed > 0 || ran == 0 {
		return 1, nil
	}
	return 0, nil
}

// run gives each check a machine of its own.
func (c check) run(ctx context.Context, m *vm, out io.Writer) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	return c.on(m).once(ctx, c.steps, out)
}

// on is the check's own machine.
func (c check) on(m *vm) *vm {
	own := *m
	own.dir = filepath.Join(m.dir, c.name)
	if c.nodes > 0 {
		own.nodes, own.cpus = c.nodes, 2*c.nodes
	}
	return &own
}
