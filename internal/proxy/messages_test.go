package proxy

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// perChange is how many netlink messages it takes to bring an endpoint of a
// Service with one address or to take it away, the batch's frame included: rows
// that go and that come of the endpoints, and of the classes if the pool's size
// crosses a power of two. perSticky are those that affinity adds: rows that go
// and that come of what is drawn, and the endpoint's own.
const (
	perChange = 6
	perSticky = 3
)

// TestMessagesPerChange: what one endpoint costs does not depend on how many
// Services and endpoints there are, with affinity or without.
func TestMessagesPerChange(t *testing.T) {
	for _, affinity := range []bool{false, true} {
		for _, services := range []int{2, 300} {
			for _, endpoints := range []int{1, 3, 40} {
				most, want := messages(t, services, endpoints, affinity), perChange
				if affinity {
					want += perSticky
				}
				if most > want {
					t.Errorf("%d Services of %d endpoints, affinity %t: %d messages, want at most %d", services, endpoints, affinity, most,
						want)
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
		w := &writer{kernel: k, layout: rules.Layout{Family: model.V4, MarkBit: 1 << 14}, table: "berth-messages",
			model: model.New(model.Config{Family: model.V4, NodeName: "elsewhere"})}
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
			// The first one goes, so that the last takes its place.
			w.model.SetSlice(slice("s1", ips(1, endpoints+1)[i%2:]...))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return most
}
