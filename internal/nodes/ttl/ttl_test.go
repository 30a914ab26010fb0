package ttl

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/controller"
)

func TestSteps(t *testing.T) {
	s := step(0)
	for _, c := range []struct{ nodes, seconds int }{
		{1, 0}, {100, 0}, {101, 15}, {95, 15}, {90, 15}, {89, 0}, {500, 15}, {501, 30}, {450, 30}, {449, 15},
		{1001, 60}, {900, 60}, {899, 30}, {2001, 300}, {1800, 300}, {1799, 60}, {100_000, 300}, {0, 0},
	} {
		if s = s.Next(c.nodes); s.Seconds() != c.seconds {
			t.Errorf("with %d nodes: %d s, want %d", c.nodes, s.Seconds(), c.seconds)
		}
	}
}

func TestShellAnnotatesAndFollowsTheCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		client := fake.NewClientset()
		for i := range 100 {
			if err := client.Tracker().Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}}); err != nil {
				t.Fatal(err)
			}
		}
		shared := informers.NewSharedInformerFactory(client, 0)
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, controller.Env{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler)})
		}()
		value := func(name string) string {
			time.Sleep(time.Second)
			synctest.Wait()
			n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return n.Annotations[Annotation]
		}
		if v := value("n7"); v != "0" {
			t.Errorf("of 100 nodes: %q", v)
		}
		if _, err := client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "more"}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if v := value("more"); v != "15" {
			t.Errorf("of 101 nodes: %q", v)
		}
		cancel()
		<-done
		shared.Shutdown()
	})
}
