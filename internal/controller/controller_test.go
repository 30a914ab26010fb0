package controller

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/internal/journal"
)

// Of several words about one controller the first counts, wherever "*" stands,
// as in kube-controller-manager.
func TestChoose(t *testing.T) {
	known := []Controller{{Name: "job-controller", Alias: "job"}, {Name: "ttl-controller", Alias: "ttl"},
		{Name: "token-cleaner-controller"}}
	for words, want := range map[string]string{
		"":                                  "job-controller ttl-controller token-cleaner-controller",
		"*":                                 "job-controller ttl-controller token-cleaner-controller",
		"-ttl":                              "",
		"ttl":                               "ttl-controller",
		"*,-job":                            "ttl-controller token-cleaner-controller",
		"-job-controller,*,job":             "ttl-controller token-cleaner-controller",
		"job,*,-job-controller":             "job-controller ttl-controller token-cleaner-controller",
		"job,-job":                          "job-controller",
		"-job,job,token-cleaner-controller": "token-cleaner-controller",
	} {
		on, err := Choose(strings.FieldsFunc(words, func(r rune) bool { return r == ',' }), known...)
		if err != nil {
			t.Errorf("%q: %v", words, err)
			continue
		}
		var got []string
		for _, c := range known {
			if on(c.Name) {
				got = append(got, c.Name)
			}
		}
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%q runs %v, want %s", words, got, want)
		}
	}
	if _, err := Choose([]string{"*", "-jobs"}, known...); err == nil || !strings.Contains(err.Error(), `"jobs"`) ||
		!strings.Contains(err.Error(), "ttl-controller") {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestBackoffDoublesUpToItsMost(t *testing.T) {
	b := Backoff{First: 20 * time.Millisecond, Most: time.Second}
	for failures, want := range map[int]time.Duration{1: 20 * time.Millisecond, 2: 40 * time.Millisecond, 6: 640 * time.Millisecond,
		7: time.Second, 5000: time.Second} {
		if got := b.Delay(failures); got != want {
			t.Errorf("after %d failures: %s, want %s", failures, got, want)
		}
		if got := b.Jittered(failures); got < want || got > want+want/2 {
			t.Errorf("after %d failures, with jitter: %s", failures, got)
		}
	}
	r := Retry{Backoff: b}
	r.Failed()
	r.Failed()
	r.Succeeded()
	if d := r.Failed(); d > 30*time.Millisecond {
		t.Errorf("the first failure after a success waits %s", d)
	}
}

// A controller that ends with leadership leaves no handler on the informers
// that the next one will use.
func TestHandlersEndWithTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "there"}})
		shared := informers.NewSharedInformerFactory(client, 0)
		life, end := context.WithCancel(context.Background())
		defer func() { end(); shared.Shutdown() }()
		shared.StartWithContext(life)
		seen := 0
		c := Controller{Name: "test", Run: func(ctx context.Context, e Env) error {
			done, err := On(ctx, e.Informers.Core().V1().Nodes().Informer(), func(_, _ *v1.Node, _ bool) { seen++ })
			if err != nil {
				return err
			}
			e.Informers.StartWithContext(life) // they outlive this controller
			if err := e.Synced(ctx, done); err != nil {
				return err
			}
			if seen != 1 {
				t.Errorf("synced after %d of 1 objects", seen)
			}
			return errors.New("over")
		}}
		run := c.Start(Env{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler)}, nil)
		if err := run(life); err == nil || err.Error() != "over" {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := client.CoreV1().Nodes().Create(life, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "later"}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if seen != 1 {
			t.Errorf("the handler of a controller that ended saw %d events more", seen-1)
		}
	})
}

type kept []journal.Record

func (k *kept) Append(r journal.Record) { *k = append(*k, r) }

func TestOneNoteIsJournalLogAndEvent(t *testing.T) {
	var k kept
	var out strings.Builder
	events := record.NewFakeRecorder(2)
	e := Env{Name: "test", Journal: &k, Log: slog.New(slog.NewTextHandler(&out, nil))}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	e.Tell(Note{Kind: "Pod", Object: pod, Decision: "deleted", Because: []journal.Fact{{Name: "node", Value: "n"}},
		Event: Event{To: events, Reason: "Gone", Message: "it went"}})
	if len(k) != 1 || k[0].Part != "test" || k[0].Object != (journal.Ref{Kind: "Pod", Namespace: "ns", Name: "p", UID: "u"}) ||
		k[0].Decision != "deleted" {
		t.Errorf("journal: %+v", k)
	}
	if !strings.Contains(out.String(), "msg=deleted kind=Pod object=ns/p node=n") {
		t.Errorf("log: %s", &out)
	}
	if got := <-events.Events; got != "Normal Gone it went" {
		t.Errorf("event: %s", got)
	}
	e.Note("Pod", pod, "looked at")
	if len(k) != 2 || strings.Contains(out.String(), "looked at") {
		t.Errorf("a quiet note: %+v, %s", k, &out)
	}
}

// client-go's queues and ours show in the same metric families of one process.
func TestQueueMetricsAreUpstreams(t *testing.T) {
	theirs := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: "theirs"})
	defer theirs.ShutDown()
	q := NewMeasuredQueue("ours", usualBackoff)
	q.Add("a")
	q.Add("b")
	q.Add("b")
	if key, ok, _ := q.take(); !ok || key != "a" {
		t.Fatal(key, ok)
	}
	q.done("a", true)
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	names := 0
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "workqueue_") {
			continue
		}
		names++
		both := map[string]bool{}
		for _, m := range f.GetMetric() {
			name := m.GetLabel()[0].GetValue()
			both[name] = true
			if name == "ours" {
				got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		// A queue of client-go's without delays has no retries.
		if !both["ours"] || !both["theirs"] && f.GetName() != "workqueue_retries_total" {
			t.Errorf("%s has only %v", f.GetName(), both)
		}
	}
	want := map[string]float64{"workqueue_depth": 1, "workqueue_adds_total": 2, "workqueue_retries_total": 1,
		"workqueue_queue_duration_seconds": 1, "workqueue_work_duration_seconds": 1}
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s is %v, want %v", name, got[name], v)
		}
	}
	if names != 7 {
		t.Errorf("%d families, want 7", names)
	}
}
