package eviction

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestShellEvictsWhenTheTolerationRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		seconds := int64(30)
		client := fake.NewClientset(
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}}}},
			&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: v1.PodSpec{NodeName: "n", Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: &seconds}}}})
		shared := informers.NewSharedInformerFactory(client, 0)
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, Config{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler)})
		}()
		for _, c := range []struct {
			wait time.Duration
			gone bool
		}{{29 * time.Second, false}, {2 * time.Second, true}} {
			time.Sleep(c.wait) // virtual
			synctest.Wait()
			_, err := client.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{})
			if apierrors.IsNotFound(err) != c.gone {
				t.Errorf("after %s more: %v, want gone %v", c.wait, err, c.gone)
			}
		}
		cancel()
		<-done
		shared.Shutdown()
	})
}
