package recount

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/controller"
)

// TestQuota runs the controller beside a real server, whose admission refuses
// what goes over.
func TestQuota(t *testing.T) {
	config := apitest.Start(t)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	factory := informers.NewSharedInformerFactory(client, 0)
	go func() {
		done <- Run(ctx, controller.Env{Name: "resourcequota-controller", Client: client, Informers: factory,
			Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})

	quotas, maps := client.CoreV1().ResourceQuotas("default"), client.CoreV1().ConfigMaps("default")
	configMap := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	if _, err := maps.Create(ctx, configMap("before"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	hard := corev1.ResourceList{"configmaps": resource.MustParse("2"), "count/secrets": resource.MustParse("5"),
		"requests.cpu": resource.MustParse("1")}
	if _, err := quotas.Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"},
		Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func(want string) {
		t.Helper()
		last := ""
		err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
			q, err := quotas.Get(ctx, "q", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			u := q.Status.Used
			maps, secrets := u["configmaps"], u["count/secrets"]
			last = fmt.Sprintf("%d of %d: %s %s %s", len(u), len(q.Status.Hard), maps.String(), secrets.String(),
				u.Name("requests.cpu", resource.DecimalSI).String())
			return last == want, nil
		})
		if err != nil {
			t.Fatalf("quota shows %s, want %s (%v)", last, want, err)
		}
	}
	used("3 of 3: 1 0 0")
	if _, err := maps.Create(ctx, configMap("second"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used("3 of 3: 2 0 0")
	if _, err := maps.Create(ctx, configMap("third"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(),
		"exceeded quota: q, requested: configmaps=1, used: configmaps=2, limited: configmaps=2") {
		t.Errorf("a third config map: %v", err)
	}
	if err := maps.Delete(ctx, "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used("3 of 3: 1 0 0")
	if _, err := maps.Create(ctx, configMap("third"), metav1.CreateOptions{}); err != nil {
		t.Errorf("after one went: %v", err)
	}
}
