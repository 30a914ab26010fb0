package kube

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func election(client *fake.Clientset, id string) Election {
	return Election{Client: client, Namespace: "kube-system", Name: "lock", Identity: id,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, Log: slog.New(slog.DiscardHandler)}
}

// The second leads at once when the first ends, but not before the first's run
// has returned.
func TestLeadHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		running := 0
		run := func(slow time.Duration) func(context.Context) error {
			return func(ctx context.Context) error {
				running++
				if running != 1 {
					t.Error("two lead at once")
				}
				<-ctx.Done()
				time.Sleep(slow) // virtual: an ending that takes its time
				running--
				return nil
			}
		}
		first, endFirst := context.WithCancel(context.Background())
		second, endSecond := context.WithCancel(context.Background())
		done := make(chan error, 2)
		go func() { done <- Lead(first, election(client, "a"), run(time.Minute)) }()
		time.Sleep(time.Second)
		go func() { done <- Lead(second, election(client, "b"), run(0)) }()
		time.Sleep(time.Minute)
		endFirst()
		time.Sleep(30 * time.Second)
		if l := holder(t, client); l != "a" {
			t.Errorf("held by %q while a still runs", l)
		}
		time.Sleep(35 * time.Second)
		if l := holder(t, client); l != "b" {
			t.Errorf("held by %q after a ended", l)
		}
		endSecond()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if l := holder(t, client); l != "" {
			t.Errorf("held by %q though nobody runs", l)
		}
	})
}

func holder(t *testing.T, client *fake.Clientset) string {
	l, err := client.CoordinationV1().Leases("kube-system").Get(context.Background(), "lock", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// Who cannot renew stops before the lease runs out, and says so.
func TestLeadEndsWhenTheLeaseCannotBeRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var broken atomic.Pointer[time.Time]
		client.PrependReactor("update", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
			return broken.Load() != nil, nil, errors.New("no connection")
		})
		var ended time.Time
		done := make(chan error, 1)
		go func() {
			done <- Lead(context.Background(), election(client, "a"), func(ctx context.Context) error {
				<-ctx.Done()
				ended = time.Now()
				return ctx.Err()
			})
		}()
		time.Sleep(time.Minute)
		now := time.Now()
		broken.Store(&now)
		if err := <-done; !errors.Is(err, ErrLost) {
			t.Errorf("ended with %v", err)
		}
		if late := ended.Sub(now); late <= 0 || late > 15*time.Second {
			t.Errorf("stopped %s after the last possible renewal, the lease holds 15s", late)
		}
	})
}

func TestLeadEndsWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		first, endFirst := context.WithCancel(context.Background())
		done := make(chan error, 2)
		go func() {
			done <- Lead(first, election(client, "a"), func(ctx context.Context) error { <-ctx.Done(); return nil })
		}()
		time.Sleep(time.Second)
		waiting, cancel := context.WithCancel(context.Background())
		go func() {
			done <- Lead(waiting, election(client, "b"), func(context.Context) error { t.Error("led"); return nil })
		}()
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		endFirst()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
