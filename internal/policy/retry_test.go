package policy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/policy/model"
)

// refusing is a kernel that refuses the first writes.
type refusing struct {
	nft.Kernel
	refuse int
	at     []time.Time
}

func (k *refusing) Apply(txs ...*nft.Tx) error {
	k.at = append(k.at, time.Now())
	if len(k.at) <= k.refuse {
		return errors.New("refused")
	}
	return k.Kernel.Apply(txs...)
}

// Close is empty: the kernel outlives what opens it.
func (k *refusing) Close() error { return nil }

// TestRefusedWritesWaitLonger: the pauses between writes that fail double, each
// with up to half as much on top, and after a success all is quiet.
func TestRefusedWritesWaitLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &refusing{Kernel: nft.NewFake(), refuse: 6}
		e, err := New(Config{NodeName: "here", Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0), Instance: "t",
			kernel: func() (nft.Kernel, error) { return k, nil }})
		if err != nil {
			t.Fatal(err)
		}
		e.model = model.New()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		e.loop(ctx)
		if len(k.at) <= k.refuse || !e.synced || !k.at[len(k.at)-1].Equal(k.at[k.refuse]) {
			t.Fatalf("writes at %v, want %d refusals and one success; in force: %v", k.at, k.refuse, e.synced)
		}
		for i, least := range []time.Duration{1, 2, 4, 8, 10, 10} {
			least *= time.Second
			if pause := k.at[i+1].Sub(k.at[i]); pause < least || pause > least*3/2 {
				t.Errorf("pause %d is %v, want %v to %v", i+1, pause, least, least*3/2)
			}
		}
	})
}
