package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/metrics/pkg/apis/metrics"
)

const text = `# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="web",namespace="default",pod="a"} 4.5 1000000
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="web",namespace="default",pod="a"} 1.048576e+06 1000000
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="web",namespace="default",pod="a"} 970.5
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 100 1000000
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 2.5e+08 1000000
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="default",pod="a"} 4.6 1000000
`

func TestParse(t *testing.T) {
	s, err := Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(1000000)
	if want := (sample{At: at, CPU: 100, Memory: 2.5e8}); s.Node != want {
		t.Errorf("node %+v, want %+v", s.Node, want)
	}
	web := sample{At: at, CPU: 4.5, Memory: 1 << 20, Start: time.UnixMilli(970500)}
	if got := s.Containers[Container{"default", "a", "web"}]; got != web || len(s.Containers) != 1 {
		t.Errorf("containers %+v, want %+v alone", s.Containers, web)
	}
	if _, err := Parse(strings.NewReader("no metrics {")); err == nil {
		t.Error("text that is none was read")
	}
}

// FuzzParse: whatever an agent answers, Parse returns.
func FuzzParse(f *testing.F) {
	f.Add(text)
	f.Add("node_cpu_usage_seconds_total{} NaN -1\n")
	f.Fuzz(func(t *testing.T, s string) {
		scrape, err := Parse(strings.NewReader(s))
		if err == nil {
			state{}.Next(scrape, Resolution).Next(scrape, Resolution)
		}
	})
}

// at is a sample at a second.
func at(second int, cpu float64, start int) sample {
	return sample{At: time.Unix(int64(second), 0), CPU: cpu, Memory: 100, Start: time.Unix(int64(start), 0)}
}

func TestNext(t *testing.T) {
	for name, c := range map[string]struct {
		samples []sample
		want    string
	}{
		"one sample of an old container":       {[]sample{at(1000, 5, 100)}, "unknown"},
		"two samples":                          {[]sample{at(1000, 5, 100), at(1010, 7, 100)}, "0.2 cores over 10s"},
		"the last two count":                   {[]sample{at(1000, 5, 100), at(1010, 7, 100), at(1020, 7.5, 100)}, "0.05 cores over 10s"},
		"one sample of a fresh container":      {[]sample{at(1000, 3, 988)}, "0.25 cores over 12s"},
		"one sample of a container in its run": {[]sample{at(1000, 3, 995)}, "unknown"},
		"a restart begins anew":                {[]sample{at(1000, 50, 100), at(1010, 3, 998)}, "0.25 cores over 12s"},
		"a restart with a greater counter":     {[]sample{at(1000, 1, 100), at(1010, 3, 998)}, "0.25 cores over 12s"},
		"a restart a moment ago":               {[]sample{at(1000, 50, 100), at(1010, 60, 100), at(1020, 1, 1018)}, "unknown"},
		"the same sample twice":                {[]sample{at(1000, 5, 100), at(1010, 7, 100), at(1010, 7, 100)}, "0.2 cores over 10s"},
		"an earlier sample":                    {[]sample{at(1010, 7, 100), at(1000, 5, 100)}, "unknown"},
		"a sample without a counter":           {[]sample{at(1000, 5, 100), at(1005, 0, 100), at(1010, 7, 100)}, "0.2 cores over 10s"},
		"a counter that shrank by itself":      {[]sample{at(1000, 5, 100), at(1010, 4, 100)}, "unknown"},
	} {
		var p pair
		for _, s := range c.samples {
			p = p.Next(s, Resolution)
		}
		got := "unknown"
		if p.Known {
			got = fmt.Sprintf("%.4g cores over %v", p.Usage.CPU, p.Usage.Window)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func runningPod(ns, name, node string, containers ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"app": name}},
		Spec:   v1.PodSpec{NodeName: node},
		Status: v1.PodStatus{Phase: v1.PodRunning}}
	for _, c := range containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses,
			v1.ContainerStatus{Name: c, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}})
	}
	return p
}

func TestPodMetrics(t *testing.T) {
	known := func(end int) pair {
		return pair{Known: true, Usage: usage{At: time.Unix(int64(end), 0), Window: 10 * time.Second, CPU: 0.0123456789, Memory: 1 << 20}}
	}
	state := state{Containers: map[Container]pair{{"ns", "a", "web"}: known(1010), {"ns", "a", "log"}: known(1005), {"ns", "b", "web"}: {}}}
	p := runningPod("ns", "a", "n", "web", "log")
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{Name: "over",
		State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}})
	m := podMetrics(p, state, time.Unix(2000, 0))
	if m == nil || len(m.Containers) != 2 || m.Timestamp.Unix() != 1005 || m.Containers[0].Usage.Cpu().String() != "12345679n" ||
		m.Containers[0].Usage.Memory().String() != "1Mi" {
		t.Errorf("%+v", m)
	}
	for why, p := range map[string]*v1.Pod{
		"a container without usage":    runningPod("ns", "b", "n", "web"),
		"a container nobody measured":  runningPod("ns", "a", "n", "web", "new"),
		"no running container":         runningPod("ns", "a", "n"),
		"a pod of which nothing comes": runningPod("ns", "c", "n", "web"),
	} {
		if m := podMetrics(p, state, time.Now()); m != nil {
			t.Errorf("%s: %+v", why, m)
		}
	}
	p.Status.Phase = v1.PodPending
	if m := podMetrics(p, state, time.Now()); m != nil {
		t.Errorf("a pending pod has %+v", m)
	}
}

// TestFeedAsksOnlyWhileAsked counts scrapes in virtual time.
func TestFeedAsksOnlyWhileAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var scrapes atomic.Int64
		f := &Feed{Log: slog.New(slog.DiscardHandler), Nodes: func() []string { return []string{"a", "lost"} },
			Ask: func(ctx context.Context, node string) (Scrape, error) {
				if node == "lost" {
					<-ctx.Done()
					return Scrape{}, ctx.Err()
				}
				n := scrapes.Add(1)
				return Scrape{Node: sample{At: time.Now(), CPU: float64(n), Memory: 1}}, nil
			}}
		ctx, stop := context.WithCancel(t.Context())
		go f.Run(ctx) //nolint:errcheck // ends with ctx
		synctest.Wait()
		time.Sleep(time.Hour)
		if n := scrapes.Load(); n != 0 {
			t.Errorf("%d scrapes before anybody asked", n)
		}
		states := f.States(t.Context())
		if !states["a"].Node.Known || scrapes.Load() != 2 {
			t.Errorf("the first answer after %d scrapes is %+v", scrapes.Load(), states)
		}
		if _, ok := states["lost"]; ok {
			t.Error("a node that does not answer has usage")
		}
		for range 20 {
			time.Sleep(30 * time.Second)
			f.States(t.Context())
		}
		if n := scrapes.Load(); n < 20 || n > 50 {
			t.Errorf("%d scrapes in ten minutes of questions", n)
		}
		time.Sleep(2 * idle)
		before := scrapes.Load()
		time.Sleep(time.Hour)
		if n := scrapes.Load(); n != before {
			t.Errorf("%d scrapes in an hour that nobody asked", n-before)
		}
		if states := f.States(t.Context()); !states["a"].Node.Known {
			t.Errorf("after a rest: %+v", states)
		}
		stop()
		synctest.Wait()
	})
}

func TestStorage(t *testing.T) {
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, name := range []string{"b", "a"} {
		if err := nodes.Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}); err != nil {
			t.Fatal(err)
		}
		if err := pods.Add(runningPod("ns", name, "a", "web")); err != nil {
			t.Fatal(err)
		}
	}
	feed := &Feed{Log: slog.New(slog.DiscardHandler), Nodes: func() []string { return []string{"a", "b"} },
		Ask: func(_ context.Context, node string) (Scrape, error) {
			s := sample{At: time.Now(), CPU: float64(time.Now().UnixNano()) / 1e10, Memory: 1 << 30, Start: time.Unix(1, 0)}
			return Scrape{Node: s, Containers: map[Container]sample{{"ns", "b", "web"}: s}}, nil
		}}
	go feed.Run(t.Context()) //nolint:errcheck // ends with the test
	src := Source{Feed: feed, Nodes: corelisters.NewNodeLister(nodes), Pods: corelisters.NewPodLister(pods)}
	n, p, ctx := &nodeREST{src: src}, &podREST{src: src}, genericapirequest.WithNamespace(t.Context(), "ns")
	list, err := n.List(ctx, &metainternal.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if l := list.(*metrics.NodeMetricsList); len(l.Items) != 2 || l.Items[0].Name != "a" || l.Items[1].Usage.Memory().String() != "1Gi" {
		t.Errorf("%+v", l)
	}
	list, err = n.List(ctx, &metainternal.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"name": "b"})})
	if err != nil || len(list.(*metrics.NodeMetricsList).Items) != 1 {
		t.Errorf("by label: %+v, %v", list, err)
	}
	list, err = p.List(ctx, nil)
	if l := list.(*metrics.PodMetricsList); err != nil || len(l.Items) != 1 || l.Items[0].Name != "b" {
		t.Errorf("%+v, %v", l, err)
	}
	if table, err := p.ConvertToTable(ctx, list, nil); err != nil || len(table.Rows) != 1 || table.Rows[0].Cells[0] != "b" {
		t.Errorf("%+v, %v", table, err)
	}
	if _, err := p.Get(ctx, "a", nil); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "podmetrics") {
		t.Errorf("a pod without usage: %v", err)
	}
	if _, err := p.Get(ctx, "none", nil); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that is not there: %v", err)
	}
}
