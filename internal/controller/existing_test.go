package controller_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/controller"
)

func TestExistingLooksTheObjectUp(t *testing.T) {
	held := cache.NewStore(cache.MetaNamespaceKeyFunc)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	if err := held.Add(pod); err != nil {
		t.Fatal(err)
	}
	var got []*v1.Pod
	sync := controller.Existing(held, func(_ context.Context, p *v1.Pod) (time.Duration, error) {
		got = append(got, p)
		return time.Minute, nil
	})
	if again, err := sync(t.Context(), controller.Key(pod)); err != nil || again != time.Minute || len(got) != 1 || got[0] != pod {
		t.Errorf("the cached object: again %v, error %v, got %v", again, err, got)
	}
	if again, err := sync(t.Context(), "ns/gone"); err != nil || again != 0 || len(got) != 1 {
		t.Errorf("an object that is gone: again %v, error %v, got %v", again, err, got)
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !controller.Sleep(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("it slept %v, want a minute", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if controller.Sleep(ctx, time.Minute) || time.Since(began) != 61*time.Second {
			t.Errorf("it did not end with its context: %v", time.Since(began)-time.Minute)
		}
	})
}
