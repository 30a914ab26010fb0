package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestShimsEndWithTheirPods deletes pods at every moment of their start. The
// runtime must not be left with processes that it has forgotten.
func TestShimsEndWithTheirPods(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	ctx := context.Background()
	pods := c.Client.CoreV1().Pods("default")
	now := int64(0)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var wg sync.WaitGroup
	for round := range 8 {
		for i := range 8 {
			name := fmt.Sprintf("brief-%d-%d", round, i)
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "berth.dev/toolbox:1", Command: []string{"pause"}}}}}
			if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			moment := time.Duration(rng.IntN(600)) * time.Millisecond // a start takes 100 to 500
			wg.Go(func() {
				<-time.After(moment)
				if err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
					t.Errorf("deleting %s: %v", name, err)
				}
			})
		}
		wg.Wait()
	}
	c.Eventually("no pod and no shim is left", func() (bool, string) {
		var shims []string
		for line := range kit.ReadHostState(t, c.Dir).Processes {
			if strings.Contains(line, "containerd-shim") {
				shims = append(shims, line)
			}
		}
		left := c.Pods("default", "")
		return len(left)+len(shims) == 0, fmt.Sprintf("%d pods; %s", len(left), strings.Join(shims, "; "))
	})
}
