package shutdown

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

func aPod(name string, priority int32, grace int64) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Priority: &priority, TerminationGracePeriodSeconds: &grace}}
}

func seconds(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }

func TestPlan(t *testing.T) {
	done := aPod("done", 0, 5)
	done.Status.Phase = v1.PodSucceeded
	pods := []*v1.Pod{aPod("low", -5, 60), aPod("web", 100, 5), aPod("dns", criticalPriority, 60), aPod("mid", 5000, 600), done}
	for name, test := range map[string]struct {
		cfg  kubeletv1beta1.KubeletConfiguration
		want []string
	}{
		"off": {},
		"two periods": {kubeletv1beta1.KubeletConfiguration{ShutdownGracePeriod: seconds(30), ShutdownGracePeriodCriticalPods: seconds(10)},
			[]string{"0/20s: low=20s web=5s mid=20s", "2000000000/10s: dns=10s"}},
		"by priority": {kubeletv1beta1.KubeletConfiguration{
			ShutdownGracePeriodByPodPriority: []kubeletv1beta1.ShutdownGracePeriodByPodPriority{
				{Priority: 10000, ShutdownGracePeriodSeconds: 20}, {Priority: 1000, ShutdownGracePeriodSeconds: 120},
				{Priority: 0, ShutdownGracePeriodSeconds: 60}}},
			[]string{"0/1m0s: low=1m0s web=5s", "1000/2m0s: mid=2m0s", "10000/20s: dns=20s"}},
	} {
		var got []string
		for _, stage := range plan(groups(&test.cfg), pods) {
			text := fmt.Sprintf("%d/%v:", stage.Priority, stage.Period)
			for _, victim := range stage.Victims {
				text += fmt.Sprintf(" %s=%v", victim.Pod.Name, victim.Grace)
			}
			got = append(got, text)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// system is a host whose shutdown the test begins.
type system struct {
	told chan bool
	mu   sync.Mutex
	held int
}

func (s *system) Delay(context.Context, time.Duration) (time.Duration, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held++
	var once sync.Once
	return time.Hour, func() {
		once.Do(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.held--
		})
	}, nil
}

func (s *system) Watch(context.Context) (<-chan bool, error) { return s.told, nil }

func (s *system) holds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held > 0
}

type status struct{ down bool }

func (b *status) SetShuttingDown(down bool) { b.down = down }

func TestShutdownEndsGroupsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := &system{told: make(chan bool)}, &status{}
		begun := time.Now()
		var order []string
		m, err := New(Config{
			Log: slog.New(slog.DiscardHandler), NodeName: "n1", System: s, Status: b, Events: record.NewFakeRecorder(10),
			Kubelet: &kubeletv1beta1.KubeletConfiguration{ShutdownGracePeriod: seconds(30), ShutdownGracePeriodCriticalPods: seconds(10)},
			Pods: func() []*v1.Pod {
				return []*v1.Pod{aPod("dns", criticalPriority, 60), aPod("web", 0, 5), aPod("stuck", 0, 60)}
			},
			Kill: func(p *v1.Pod, _ time.Duration) <-chan struct{} {
				order = append(order, fmt.Sprintf("%s at %v", p.Name, time.Since(begun)))
				over := make(chan struct{})
				if p.Name != "stuck" {
					close(over)
				}
				return over
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if !s.holds() {
			t.Fatal("the shutdown is not delayed")
		}
		if _, _, ok := m.Admit(nil); !ok {
			t.Error("pods are refused before the shutdown")
		}
		s.told <- true
		synctest.Wait()
		if reason, _, ok := m.Admit(nil); ok || reason != "NodeShutdown" || !b.down {
			t.Errorf("during the shutdown: admitted %v (%s), board %v", ok, reason, b.down)
		}
		if !s.holds() {
			t.Error("the delay was given up with pods still ending")
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if want := []string{"web at 0s", "stuck at 0s", "dns at 20s"}; !slices.Equal(order, want) {
			t.Errorf("order is %q, want %q", order, want)
		}
		if s.holds() {
			t.Error("the delay is held although all ended")
		}
		s.told <- false
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, _, ok := m.Admit(nil); !ok || b.down || !s.holds() {
			t.Errorf("after the shutdown was called off: admitted %v, board %v, delay %v", ok, b.down, s.holds())
		}
	})
}

func TestWithoutPeriodsThereIsNoManager(t *testing.T) {
	if m, err := New(Config{Kubelet: &kubeletv1beta1.KubeletConfiguration{}}); m != nil || err != nil {
		t.Errorf("got %v, %v", m, err)
	}
}
