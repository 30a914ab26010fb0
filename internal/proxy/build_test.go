package proxy

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
)

// large is a writer of more rows than one part of a new table holds.
func large(k nft.Kernel) *writer {
	w := &writer{kernel: k, layout: rules.Layout{Family: model.V4, MarkBit: 1 << 14}, table: "berth-large",
		model: model.New(model.Config{Family: model.V4, NodeName: "elsewhere"})}
	for i := range 250 {
		s := svc(fmt.Sprint("s", i), fmt.Sprintf("10.96.0.%d", i), 80, nil)
		s.Spec.Ports = s.Spec.Ports[:1]
		w.model.SetService(s)
		w.model.SetSlice(slice(s.Name, ips(i, 60)...))
	}
	return w
}

// TestNewTableInParts: no packet enters a new table before it is whole, and one
// whose writer died between two parts is begun again.
func TestNewTableInParts(t *testing.T) {
	dead := errors.New("dead")
	for dies := range 10 {
		k, sent := nft.NewFake(), 0
		k.Fail = func(tx *nft.Tx) error {
			chains, err := k.Chains(model.V4, "berth-large")
			if err != nil || rules.Hooked(chains) {
				t.Errorf("part %d comes to a table that packets enter (%v)", sent, err)
			}
			if sent++; sent == dies+1 {
				return dead
			}
			return nil
		}
		w := large(k)
		_, err := w.sync()
		if err == nil {
			if dies < 3 {
				t.Errorf("%d parts are too few to try anything", sent)
			}
			return
		}
		if !errors.Is(err, dead) {
			t.Fatal(err)
		}
		k.Fail = nil
		whole(t, k, large(k), false)
	}
	t.Error("the table never came to be")
}

// TestEnteredTableAtOnce: a table that packets enter, of whatever layout, is
// replaced in one transaction.
func TestEnteredTableAtOnce(t *testing.T) {
	k := nft.NewFake()
	was := large(k)
	was.layout.MarkBit = 1 << 15
	if _, err := was.sync(); err != nil {
		t.Fatal(err)
	}
	sent := 0
	k.Fail = func(*nft.Tx) error { sent++; return nil }
	if _, err := large(k).sync(); err != nil || sent != 1 {
		t.Errorf("%d transactions, want 1 (%v)", sent, err)
	}
	k.Fail = nil
	whole(t, k, large(k), true)
}

// whole syncs and expects that the table is then what a restart would adopt.
func whole(t *testing.T, k *nft.Fake, w *writer, adopts bool) {
	t.Helper()
	res, err := w.sync()
	if err != nil || res.adopted != adopts {
		t.Fatalf("adopted %t, want %t (%v)", res.adopted, adopts, err)
	}
	if ok, err := w.image().intact(k); !ok || err != nil {
		t.Errorf("the table is not what was written (%v)", err)
	}
	if !adopts {
		whole(t, k, large(k), true)
	}
}
