package nft

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// TestCutBatch sends a batch that ends after any of its messages, as when the
// sender dies there: the kernel must have done nothing. The whole one is done.
func TestCutBatch(t *testing.T) {
	ns := netnstest.New(t)
	err := netnstest.In(ns, func() error {
		k, err := Open()
		if err != nil {
			return err
		}
		defer k.Close()
		l := Layout{Family: model.V4, MarkBit: 1 << 14}
		tx := NewTx(model.V4, "cut")
		tx.Add(Op{Verb: AddTable})
		l.Build(tx)
		l.Hook(tx)
		if err := k.Apply(tx); err != nil {
			return err
		}
		return cut(k, l)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func cut(k *Netlink, l Layout) error {
	tx := NewTx(model.V4, "cut")
	l.AddTimeout(tx, 60)
	l.AddClass(tx, model.Class{Cluster: 2, Timeout: 60})
	for _, table := range []model.Table{model.Endpoints, model.Sticky, model.Picks, model.StickyEndpoints, model.ClusterIPs} {
		s := table.Shape(model.V4)
		tx.Add(Op{Verb: AddRows, Name: s.Name, Shape: s, Rows: make([]byte, s.Stride())})
	}
	before, err := k.Generation()
	if err != nil {
		return err
	}
	if _, _, err := k.batch(tx); err != nil {
		return err
	}
	var ends []int
	for at := 0; at < len(k.buf); ends = append(ends, at) {
		at += (int(binary.NativeEndian.Uint32(k.buf[at:])) + 3) / 4 * 4
	}
	for i := range ends[:len(ends)-1] {
		// Encoded anew each time: the kernel asks for numbers that rise.
		if _, _, err := k.batch(tx); err != nil {
			return err
		}
		k.buf = k.buf[:ends[i]]
		if err := k.send(); err != nil {
			return err
		}
		if now, err := k.Generation(); err != nil || now != before {
			return fmt.Errorf("%d of %d messages changed the tables (%v)", i+1, len(ends), err)
		}
	}
	if err := k.Apply(tx); err != nil {
		return err
	}
	if now, err := k.Generation(); err != nil || now != before+1 {
		return fmt.Errorf("the whole batch did not change the tables once (%v)", err)
	}
	return nil
}
