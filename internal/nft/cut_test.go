package nft

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft/row"
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
		tx := NewTx(row.V4, "cut")
		tx.Add(Op{Verb: AddTable})
		tx.Add(Op{Verb: AddChain, Name: "enter", Hook: &Hook{Num: unix.NF_INET_POST_ROUTING, Priority: 100}})
		if err := k.Apply(tx); err != nil {
			return err
		}
		return cut(k)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func cut(k *Netlink) error {
	tx, shape := NewTx(row.V4, "cut"), row.Shape{Name: "ways", Key: 8, Value: 8}
	tx.Add(Op{Verb: AddSet, Name: "ways", Set: &Set{Name: "ways", Key: []Type{FieldsOf(row.V4).Daddr, TypePort},
		Value: []Type{FieldsOf(row.V4).Daddr, TypePort}}})
	tx.Add(Op{Verb: AddChain, Name: "drop"})
	tx.Rule("drop", Daddr(row.V4, R0), &expr.Verdict{Kind: expr.VerdictDrop})
	tx.Rule("enter", Jump("drop"))
	tx.Add(Op{Verb: AddRows, Name: "ways", Shape: shape, Rows: make([]byte, shape.Stride())})
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
		// Encoded again each time: the kernel asks for numbers that rise.
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
