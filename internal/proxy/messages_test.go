package proxy

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/netnstest"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/nft"
)

// perChange is how many netlink messages it takes to bring an endpoint of a
// Service with one address or to take it away, the batch's frame included: a
// row more or less of the endpoints, and of the classes if the pool's size
// crosses a power of two.
const perChange = 6

// TestMessagesPerChange: what one endpoint costs does not depend on how many
// Services and endpoints there are; with affinity it depends on those of its
// Service, by two rules each, and on no other's.
func TestMessagesPerChange(t *testing.T) {
	for _, affinity := range []bool{false, true} {
		for _, services := range []int{2, 300} {
			for _, endpoints := range []int{2, 40} {
				most, want := messages(t, services, endpoints, affinity), perChange
				if affinity {
					// The chain emptied, two rules for each of the endpoints, and the row with its hash.
					want += 2 + 2*(endpoints+1) + 2
				}
				if most > want {
					t.Errorf("%d Services of %d endpoints, affinity %t: %d messages, want at most %d", services, endpoints, affinity, most, want)
				}
			}
		}
	}
}

// messages returns the most that one more or one less endpoint took.
func messages(t *testing.T, services, endpoints int, affinity bool) (most int) {
	ns := netnstest.New(t)
	err := netnstest.In(ns, func() error {
		k, err := nft.Open()
		if err != nil {
			return err
		}
		defer k.Close()
		w := &writer{kernel: k, layout: nft.Layout{Family: model.V4, MarkBit: 1 << 14}, table: "berth-messages", model: model.New(model.Config{Family: model.V4, NodeName: "elsewhere"})}
		for i := range services {
			s := svc(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", i>>8, i&255), 80, nil)
			if s.Spec.Ports = s.Spec.Ports[:1]; affinity {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			}
			w.model.SetService(s)
			w.model.SetSlice(slice(s.Name, ips(i, endpoints)...))
		}
		for i := range 7 {
			before := k.Messages
			if _, err := w.sync(); err != nil {
				return err
			}
			if i > 2 { // first comes the table, then a class that may be new
				most = max(most, k.Messages-before)
			}
			w.model.SetSlice(slice("s1", ips(1, endpoints+(i+1)%2)...))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return most
}

// TestAffinityComesFirst: the row that leads to the chain of a Service whose
// affinity is switched on comes when that chain has its rules already. A packet
// on its way while a batch takes effect sees new rows, but old rules.
func TestAffinityComesFirst(t *testing.T) {
	k := nft.NewFake()
	w := &writer{kernel: k, layout: nft.Layout{Family: model.V4, MarkBit: 1 << 14}, table: "berth-first", model: model.New(model.Config{Family: model.V4, NodeName: nodeName})}
	s := svc("s", "10.96.0.1", 80, nil)
	w.model.SetService(s)
	w.model.SetSlice(slice("s", "10.244.0.1", "10.244.0.2"))
	if _, err := w.sync(); err != nil {
		t.Fatal(err)
	}
	rows, written := 0, map[string]bool{}
	k.Fail = func(tx *nft.Tx) error {
		for _, o := range tx.Ops {
			if o.Verb == nft.AddRows && o.Shape.Chain {
				rows += len(o.Rows) / o.Shape.Stride()
				for c := range written {
					if written[c] {
						continue
					}
					t.Errorf("chain %s gets its rules together with the row that leads there", c)
				}
			}
			if _, _, ok := nft.ParseStickyName(o.Name); ok {
				written[o.Name] = false
			}
		}
		for c := range written {
			written[c] = true
		}
		return nil
	}
	s = s.DeepCopy()
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	w.model.SetService(s)
	if _, err := w.sync(); err != nil {
		t.Fatal(err)
	}
	if rows == 0 || len(written) == 0 {
		t.Fatalf("%d rows lead to %d chains: affinity was not switched on", rows, len(written))
	}
}
