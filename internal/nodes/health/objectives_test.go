package health_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/nodes/health"
)

// Grace and lease period of the fleets below: shorter than upstream's, since
// lateness is measured from the deadline.
const (
	shortGrace         = 30 * time.Second
	shortRenewInterval = 10 * time.Second
)

// BenchmarkSilent measures on the embedded API server how long after its
// deadline a silent node's Ready condition is seen to be Unknown. The silent
// renew their leases all at once before they stop: the worst case. Others go on
// renewing.
func BenchmarkSilent(b *testing.B) {
	for _, c := range []struct {
		silent, all int
		bar         time.Duration // the last one may be seen so late
	}{{1, 5000, 200 * time.Millisecond}, {1000, 1000, 3 * time.Second}, {1000, 5000, 3 * time.Second}} {
		b.Run(fmt.Sprintf("%dof%d", c.silent, c.all), func(b *testing.B) {
			for b.Loop() {
				late := silence(b, c.silent, c.all)
				slices.Sort(late)
				b.ReportMetric(float64(late[len(late)/2].Milliseconds()), "p50-ms-late")
				b.ReportMetric(float64(late[len(late)-1].Milliseconds()), "last-ms-late")
				if last := late[len(late)-1]; last > c.bar {
					b.Errorf("the last of %d of %d silent nodes was seen %s late, at most %s is allowed", c.silent, c.all, last, c.bar)
				}
			}
		})
	}
}

func silence(b *testing.B, silent, all int) []time.Duration {
	env := apitest.StartEnv(b)
	defer env.Stop()
	// Nodes talk through many connections, as they do; the controller has its own.
	fleet := rest.CopyConfig(env.Config)
	fleet.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(fleet)
	if err != nil {
		b.Fatal(err)
	}
	f := &fleetOf{b: b, client: client, renewed: make([]time.Time, all), leases: make([]*coordination.Lease, all)}
	f.each(all, 16, f.register)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	seen := f.watch(ctx, &wg)

	own := rest.CopyConfig(fleet)
	own.QPS = -1
	controller, err := kubernetes.NewForConfig(own)
	if err != nil {
		b.Fatal(err)
	}
	settings := health.Defaults()
	settings.Grace = shortGrace
	wg.Go(func() {
		shared := informers.NewSharedInformerFactory(controller, 0)
		defer shared.Shutdown()
		cfg := health.Config{Client: controller, Informers: shared, Log: slog.New(slog.DiscardHandler), Settings: settings,
			Events: kube.Events(ctx, controller)("node-controller")}
		health.Run(ctx, cfg) //nolint:errcheck // ends with ctx
	})
	working, stop := context.WithCancel(ctx)
	var fleetWG sync.WaitGroup
	fleetWG.Go(func() { f.renewAll(working, 0, all) })
	time.Sleep(2 * shortRenewInterval) // the fleet at work
	stop()
	fleetWG.Wait()
	f.each(silent, 32, f.renew)
	wg.Go(func() { f.renewAll(ctx, silent, all) })
	var late []time.Duration
	deadline := time.After(shortGrace + time.Minute)
	for len(late) < silent {
		select {
		case s := <-seen:
			if s.node >= silent {
				b.Errorf("node %d renews its lease and was marked", s.node)
				continue
			}
			late = append(late, s.at.Sub(f.renewed[s.node])-shortGrace)
		case <-deadline:
			b.Fatalf("%d of %d silent nodes were marked", len(late), silent)
		}
	}
	if early := slices.Min(late); early < 0 {
		b.Errorf("a node was marked %s before its deadline", -early)
	}
	return late
}

// fleetOf is nodes without hosts.
type fleetOf struct {
	b       *testing.B
	client  kubernetes.Interface
	mu      sync.Mutex
	renewed []time.Time // when the last renewal was acknowledged
	leases  []*coordination.Lease
}

func (f *fleetOf) each(n, atOnce int, do func(i int)) {
	var wg sync.WaitGroup
	work := make(chan int)
	for range atOnce {
		wg.Go(func() {
			for i := range work {
				do(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
}

func name(i int) string { return fmt.Sprintf("node-%05d", i) }

func (f *fleetOf) register(i int) {
	ctx := context.Background()
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{v1.LabelTopologyZone: fmt.Sprintf("z%d", i%3)}}}
	n, err := f.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	if err != nil {
		f.b.Error(err)
		return
	}
	for _, kind := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		status := v1.ConditionFalse
		if kind == v1.NodeReady {
			status = v1.ConditionTrue
		}
		n.Status.Conditions = append(n.Status.Conditions,
			v1.NodeCondition{Type: kind, Status: status, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()})
	}
	if _, err := f.client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		f.b.Error(err)
	}
	l := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: name(i), Namespace: v1.NamespaceNodeLease},
		Spec: coordination.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now()}}}
	if f.leases[i], err = f.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Create(ctx, l, metav1.CreateOptions{}); err != nil {
		f.b.Error(err)
	}
}

// renew is called for one node at a time by one caller.
func (f *fleetOf) renew(i int) {
	f.leases[i].Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	l, err := f.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Update(context.Background(), f.leases[i], metav1.UpdateOptions{})
	if err != nil {
		f.b.Error(err)
		return
	}
	f.leases[i] = l
	f.mu.Lock()
	f.renewed[i] = time.Now()
	f.mu.Unlock()
}

// renewAll spreads the renewals of the nodes from first on over the period,
// until ctx ends.
func (f *fleetOf) renewAll(ctx context.Context, first, all int) {
	const tick = 100 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	per := (all - first) * int(tick) / int(shortRenewInterval)
	for at := 0; per > 0; at += per {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		f.each(per, 8, func(k int) { f.renew(first + (at+k)%(all-first)) })
	}
}

// sighting is a node seen to be Unknown.
type sighting struct {
	node int
	at   time.Time
}

func (f *fleetOf) watch(ctx context.Context, wg *sync.WaitGroup) <-chan sighting {
	w, err := f.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		f.b.Fatal(err)
	}
	out := make(chan sighting, 10_000)
	wg.Go(func() {
		defer w.Stop()
		told := map[string]bool{}
		for {
			select {
			case <-ctx.Done():
				return
			case e, ok := <-w.ResultChan():
				if !ok {
					return
				}
				n, isNode := e.Object.(*v1.Node)
				if e.Type != watch.Modified || !isNode || told[n.Name] || health.ViewOf(n).Ready != health.Unknown {
					continue
				}
				told[n.Name] = true
				var i int
				if _, err := fmt.Sscanf(n.Name, "node-%d", &i); err != nil {
					f.b.Error(err)
				}
				out <- sighting{i, time.Now()}
			}
		}
	})
	return out
}
