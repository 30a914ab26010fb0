package proxy

import (
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

// contract is how long after its removal an endpoint may still be connected to.
const contract = 100 * time.Millisecond

// absence is a time in which an endpoint was not one: from when the kernel had
// acknowledged the batch that took it away, until a batch that brings it back
// was sent. The zero time stands for never.
type absence struct{ from, until time.Time }

// arrival is one connection: when it began, when it was answered, and by whom.
type arrival struct {
	began, answered time.Time
	by              string
}

// late says that a connection that began when its endpoint had been away for
// longer than grace, and was answered before it came back, reached it.
func (a arrival) late(away []absence, grace time.Duration) bool {
	return slices.ContainsFunc(away, func(x absence) bool {
		return x.from.Add(grace).Before(a.began) && (x.until.IsZero() || x.until.After(a.answered))
	})
}

// TestKernelChurn connects all the time while endpoints change a thousand
// times a second: no connection may be refused or lost, since an endpoint is
// always there, and none may reach an endpoint later than 100 ms after the
// kernel acknowledged its removal. A slow machine makes both easier to keep,
// not harder: moments are compared, not measured.
func TestKernelChurn(t *testing.T) {
	w := newFixture(t)
	m := w.w.model
	m.SetService(svc("a", "10.96.0.1", 80, nil))
	m.SetService(svc("b", "10.96.0.2", 80, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }))
	ends := []string{"10.244.0.10", "10.244.0.11", "10.244.0.12"}
	m.SetSlice(slice("a", ends...))
	m.SetSlice(slice("b", ends...))
	w.sync()
	w.patience = testtimeout.Scale(20 * time.Second) // a lost packet shows as a slow connection, not as a lost one
	clients := startClients(w, "10.96.0.1:80", "10.96.0.2:80")
	changes := testtimeout.Rounds(2000, 500)
	still := changes / 5
	var away [3][]absence
	there := []bool{true, true, true}
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for i := range changes {
		// One endpoint stays away for long, one comes and goes, one stays.
		out := i / still % 3
		want := []bool{true, true, true}
		want[out], want[(out+1)%3] = false, i%2 == 0
		var now []string
		sent := time.Now()
		for e, in := range want {
			if in {
				now = append(now, ends[e])
			}
			if in && !there[e] {
				away[e][len(away[e])-1].until = sent
			}
		}
		m.SetSlice(slice("a", now...))
		m.SetSlice(slice("b", now...))
		if _, err := w.w.sync(); err != nil {
			t.Error(err)
			break
		}
		acknowledged := time.Now()
		for e, in := range want {
			if !in && there[e] {
				away[e] = append(away[e], absence{from: acknowledged})
			}
		}
		there = want
		<-pace.C // the rate is what is tried
	}
	judge(t, clients(), away)
}

// startClients connects to every address until the function it returns is
// called, which returns what came of it.
func startClients(w *fixture, to ...string) (stop func() []arrival) {
	var mu sync.Mutex
	var all []arrival
	var wg sync.WaitGroup
	done := make(chan struct{})
	for i := range 2 * len(to) {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				a := arrival{began: time.Now()}
				a.by = w.ask(w.node, "tcp4", to[i%len(to)])
				a.answered = time.Now()
				mu.Lock()
				all = append(all, a)
				mu.Unlock()
			}
		})
	}
	return func() []arrival {
		close(done)
		wg.Wait()
		return all
	}
}

func judge(t *testing.T, all []arrival, away [3][]absence) {
	t.Helper()
	failed, late, tried := 0, 0, 0
	for _, a := range all {
		e := slices.Index([]string{"0 10.244.0.1", "1 10.244.0.1", "2 10.244.0.1"}, a.by)
		if e < 0 {
			failed++
			t.Logf("a connection met %q", a.by)
			continue
		}
		if a.late(away[e], contract) {
			late++
		}
		for _, other := range away {
			if a.late(other, contract) {
				tried++
				break
			}
		}
	}
	t.Logf("%d connections, %d of them while an endpoint had been away for more than %s", len(all), tried, contract)
	if failed > 0 || late > 0 {
		t.Errorf("%d connections failed and %d reached an endpoint more than %s after its removal", failed, late, contract)
	}
	if tried == 0 {
		t.Error("no connection could have been late: nothing was tried")
	}
}
