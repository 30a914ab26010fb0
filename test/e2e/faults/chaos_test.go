package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestAcknowledgedWritesSurviveKills kills berth again and again while
// clients write, each time after a random number of acknowledged writes. What
// the server acknowledged must be there at the end, with the last content it
// acknowledged.
func TestAcknowledgedWritesSurviveKills(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	c := kit.NewCluster(t)
	c.Up()
	c.Disconnect()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	acks := make(chan struct{}, 1024)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var writers [4]writer
	var wg sync.WaitGroup
	for i := range writers {
		cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.Dir, "admin.kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.QPS, cfg.Timeout = -1, 5*time.Second
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		writers[i] = writer{name: fmt.Sprint("w", i), client: client, acks: acks, last: map[string]string{}}
		wg.Go(func() { writers[i].run(ctx) })
	}
	for round := range rounds {
		deadline := time.After(kit.Timeout)
		for range 20 + rng.IntN(60) {
			select {
			case <-acks:
			case <-deadline:
				t.Fatalf("round %d: no writes get through", round)
			}
		}
		pid := c.PID()
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		kit.WaitProcessGone(t, pid)
		// What was acknowledged before the kill does not count for the next round.
		for len(acks) > 0 {
			<-acks
		}
		if out, err := c.TryUp(); err != nil {
			t.Fatalf("round %d: up after kill -9: %v\n%s", round, err, out)
		}
	}
	cancel()
	wg.Wait()
	c.Connect()
	list, err := c.Client.CoreV1().ConfigMaps("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, cm := range list.Items {
		got[cm.Name] = cm.Data["n"]
	}
	total, lost := 0, 0
	for i := range writers {
		if writers[i].problem != "" {
			t.Errorf("writer %d: %s", i, writers[i].problem)
		}
		total += writers[i].acked
		for name, want := range writers[i].last {
			// A write that was not acknowledged may have happened all the same,
			// so a higher number is fine.
			if now, ok := got[name]; !ok || now < want {
				lost++
				t.Errorf("configmap %s: %q, acknowledged was %q", name, now, want)
			}
		}
	}
	t.Logf("%d acknowledged writes over %d kills, %d lost", total, rounds, lost)
	if total < rounds*20 {
		t.Errorf("only %d writes were acknowledged", total)
	}
}

// writer creates configmaps and changes each of them once, and remembers what
// the server acknowledged.
type writer struct {
	name    string
	client  kubernetes.Interface
	acks    chan<- struct{}
	last    map[string]string
	acked   int
	problem string
}

func (w *writer) run(ctx context.Context) {
	maps := w.client.CoreV1().ConfigMaps("default")
	ack := func(name, n string) {
		w.last[name] = n
		w.acked++
		select {
		case w.acks <- struct{}{}:
		default:
		}
	}
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("%s-%06d", w.name, i)
		cm, err := maps.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"n": "1"}},
			metav1.CreateOptions{})
		if err != nil {
			w.judge(ctx, err)
			continue
		}
		ack(name, "1")
		cm.Data["n"] = "2"
		if _, err := maps.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
			w.judge(ctx, err)
			continue
		}
		ack(name, "2")
	}
}

// judge pauses after an error that a dying or starting server gives, and
// remembers any other.
func (w *writer) judge(ctx context.Context, err error) {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code < 500 && status.Status().Code != 429 {
		w.problem = err.Error()
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
}
