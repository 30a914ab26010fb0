package proxy

import (
	"context"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/proxy/nft"
)

type told chan journal.Record

func (c told) Append(r journal.Record) {
	select {
	case c <- r:
	default:
	}
}

// TestRun starts the whole proxy against a fake API server and a real kernel.
func TestRun(t *testing.T) {
	w := newWorld(t)
	client := fake.NewClientset(svc("a", "10.96.0.1", 80, nil), slice("a", "10.244.0.10"))
	ctx, cancel := context.WithCancel(t.Context())
	written, ended := make(told, 10), make(chan error, 1)
	go func() {
		ended <- in(w.node, func() error {
			return Run(ctx, Config{NodeName: nodeName, Client: client, Informers: informers.NewSharedInformerFactory(client, 0), Instance: "berth-run",
				ClusterCIDR: "10.244.0.0/16", BridgeName: "br0", HealthzBind: "127.0.0.1:0", MetricsBind: "127.0.0.1:0", Journal: written})
		})
	}()
	select {
	case err := <-ended:
		t.Fatalf("ended early: %v", err)
	case <-written:
	}
	var k nft.Kernel = w.w.kernel
	if chains, err := k.Chains(4, "berth-run"); err != nil || len(chains) == 0 {
		t.Fatalf("chains %v, %v", chains, err)
	}
	expect(t, "pod to cluster IP", w.ask(w.pods[1], "tcp4", "10.96.0.1:80")[:1], "0")
	expect(t, "node to cluster IP", w.ask(w.node, "udp4", "10.96.0.1:80")[:1], "0")
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
