package kernel

import (
	"errors"
	"testing"
)

// TestReplaceInParts: tables come in several transactions, packets enter them
// with the last one, and whatever is in force stays so until then. A process that
// dies between any two leaves something in force, and the next one finds its way.
func TestReplaceInParts(t *testing.T) {
	n := newNode(t)
	first, second := crowd(3000), crowd(3100)
	first.Commit()
	second.Commit()
	of, err := New(n.w.name, n.w.open)
	n.must(err)
	defer of.Close()
	entered := func() bool {
		t.Helper()
		main, err := of.entered(of.families)
		n.must(err)
		cover, err := of.entered(of.cover)
		n.must(err)
		return main || cover
	}
	sent := 0
	n.w.before = func() error {
		if sent++; entered() {
			t.Error("packets enter the tables before the last part")
		}
		return nil
	}
	n.must(n.w.Replace(first.Snapshot()))
	if sent < 3 || !entered() {
		t.Fatalf("%d transactions, entered %t", sent, entered())
	}
	dead := errors.New("dead")
	for dies := 1; ; dies++ {
		sent = 0
		n.w.before = func() error {
			if sent++; !entered() {
				t.Errorf("nothing is in force before transaction %d", sent)
			}
			if sent == dies {
				return dead
			}
			return nil
		}
		err := n.w.Replace(second.Snapshot())
		if err == nil {
			if dies < 6 {
				t.Errorf("%d transactions are too few to try anything", sent)
			}
			return
		}
		if !errors.Is(err, dead) {
			t.Fatal(err)
		}
		if !entered() {
			t.Errorf("nothing is in force after a death at transaction %d", dies)
		}
		n.w.before = func() error {
			if !entered() {
				t.Errorf("nothing is in force before a transaction after a death at %d", dies)
			}
			return nil
		}
		n.must(n.w.Replace(first.Snapshot()))
		if ok, err := n.w.Stands(first.Snapshot()); !ok || err != nil {
			t.Errorf("after a death at transaction %d the tables are not what was written (%v)", dies, err)
		}
		if covered, err := n.w.stand(n.w.cover); covered || err != nil {
			t.Errorf("after a death at transaction %d the copy stays (%v)", dies, err)
		}
	}
}
