package policy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/policy/model"
)

// TestNoStartWithoutEnforcement: where bridged packets pass policies by, a pod
// that one selects does not start, with a reason, until that is fixed; others,
// and pods that hang on no bridge of ours, start as ever.
func TestNoStartWithoutEnforcement(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bridge") // not there, as without br_netfilter
	start := func(bridge bool) *Enforcer {
		t.Helper()
		k := nft.NewFake()
		e, err := New(Config{NodeName: "here", Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0), Instance: "t",
			Bridge: bridge, settings: dir,
			kernel: func() (nft.Kernel, error) { return k, nil }})
		if err != nil {
			t.Fatal(err)
		}
		e.model = model.New()
		e.model.SetPolicy(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"},
			Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pod": "guarded"}}}})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); e.loop(ctx) }()
		t.Cleanup(func() { stop(); <-done })
		return e
	}
	e := start(true)
	guard := func(p *corev1.Pod, ips ...string) error { return e.Guard(t.Context(), p, ips) }
	guarded, free := pod("guarded", "", "here"), pod("free", "", "here")
	err := guard(guarded, "10.0.0.2")
	for _, word := range []string{"x/guarded", "node here", "NetworkPolicy", "br_netfilter"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("a pod that a policy selects: %v, want %q in it", err, word)
		}
	}
	host := pod("guarded", "", "here")
	host.Spec.HostNetwork = true
	if err := errors.Join(guard(free, "10.0.0.3"), guard(host, "10.0.0.4")); err != nil {
		t.Errorf("pods that no policy selects do not start: %v", err)
	}

	// The module is loaded, for IPv4 alone.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "bridge-nf-call-iptables")
	if err := os.WriteFile(file, []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := guard(guarded, "10.0.0.2"); err != nil {
		t.Errorf("what can be enforced again does not start: %v", err)
	}
	if now, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(now)) != "1" {
		t.Errorf("the setting is %q (%v)", now, err)
	}
	if err := guard(guarded, "10.0.0.2", "fd00::2"); err == nil {
		t.Error("a pod of both families starts where only one is enforced")
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if e = start(false); guard(guarded, "10.0.0.2") != nil {
		t.Error("a pod of somebody else's network does not start")
	}
}
