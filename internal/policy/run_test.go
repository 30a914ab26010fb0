package policy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/policy/model"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

func table(t *testing.T, ns netns.NsHandle) string {
	t.Helper()
	var out bytes.Buffer
	err := netnstest.In(ns, func() error {
		cmd := exec.Command("nft", "list", "ruleset")
		cmd.Stdout = &out
		return cmd.Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// until looks at the tables until ok; each look is an exec, the number of
// looks is bounded.
func until(t *testing.T, ns netns.NsHandle, what string, ok func(string) bool) {
	t.Helper()
	last := ""
	for range testtimeout.Attempts(1000) {
		if last = table(t, ns); ok(last) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s did not happen:\n%s", what, last)
}

func pod(name, ip, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID(name),
		Labels: map[string]string{"pod": name}},
		Spec: corev1.PodSpec{NodeName: node,
			Containers: []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}}
}

func TestFollowsTheCluster(t *testing.T) {
	ns := netnstest.New(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	finished := pod("finished", "10.0.0.9", "other")
	finished.Status.Phase = corev1.PodSucceeded
	host := pod("host", "10.0.0.8", "other")
	host.Spec.HostNetwork = true
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, pod("b", "10.0.0.2", "here"),
		pod("c", "10.0.0.3", "other"), finished, host)
	shared := informers.NewSharedInformerFactory(client, 0)
	e, err := New(Config{NodeName: "here", Informers: shared, Instance: "t", Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		kernel: func() (nft.Kernel, error) { return nft.OpenAt(int(ns)) }})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	until(t, ns, "a table without policies", func(s string) bool {
		return strings.Contains(s, "table ip t-policy") &&
			!strings.Contains(s, "goto")
	})

	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{
			{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}}}
	if _, err := client.NetworkingV1().NetworkPolicies("x").Create(ctx, np, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, ns, "the policy", func(s string) bool {
		return strings.Contains(s, "10.0.0.2 : goto ingress-profile-") && strings.Contains(s, "elements = { 10.0.0.2, 10.0.0.3 }")
	})
	if s := table(t, ns); strings.Contains(s, "10.0.0.8") || strings.Contains(s, "10.0.0.9") || strings.Contains(s, "10.0.0.3 : goto") {
		t.Errorf("pods of the host's network, finished ones or those of other nodes are guarded or peers:\n%s", s)
	}

	// A pod whose address the API does not know is guarded before its
	// container starts, and stays so when a status without it comes.
	fresh := pod("fresh", "", "here")
	fresh.Status = corev1.PodStatus{Phase: corev1.PodPending}
	if _, err := client.CoreV1().Pods("x").Create(ctx, fresh, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := e.Guard(ctx, fresh, []string{"10.0.0.7"}); err != nil {
		t.Fatal(err)
	}
	if s := table(t, ns); !strings.Contains(s, "10.0.0.7 : goto") {
		t.Errorf("a container could start before its pod is guarded:\n%s", s)
	}
	fresh.Labels = map[string]string{"changed": "yes"}
	if _, err := client.CoreV1().Pods("x").Update(ctx, fresh, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	np.Spec.PodSelector = metav1.LabelSelector{MatchLabels: map[string]string{"changed": "yes"}}
	if _, err := client.NetworkingV1().NetworkPolicies("x").Update(ctx, np, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, ns, "the change of labels", func(s string) bool {
		return strings.Contains(s, "10.0.0.7 : goto") && !strings.Contains(s, "10.0.0.2 : goto")
	})
	if err := client.CoreV1().Pods("x").Delete(ctx, "fresh", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, ns, "the end of the pod", func(s string) bool { return !strings.Contains(s, "10.0.0.7") && !strings.Contains(s, "goto") })

	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if s := table(t, ns); !strings.Contains(s, "table ip t-policy") {
		t.Error("the rules did not outlive the process")
	}
	shared.Shutdown()
}

// TestStepRepairs drives the loop's steps by hand.
func TestStepRepairs(t *testing.T) {
	ns := netnstest.New(t)
	e, err := New(Config{NodeName: "here", Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0), Instance: "t",
		kernel: func() (nft.Kernel, error) { return nft.OpenAt(int(ns)) }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.writer.Close()
	e.model = newModelFor(t)
	if err := e.step(); err != nil {
		t.Fatal(err)
	}
	if e.look(); !e.synced {
		t.Error("what was just written is not found")
	}
	if err := e.writer.Remove(); err != nil {
		t.Fatal(err)
	}
	if e.look(); e.synced {
		t.Error("that the tables are gone is not seen")
	}
	if err := e.step(); err != nil {
		t.Fatal(err)
	}
	if s := table(t, ns); !strings.Contains(s, "10.0.0.2 : goto") {
		t.Errorf("the tables were not written anew:\n%s", s)
	}

	// A write that fails leaves those who wait waiting, and all is
	// written again by the next.
	if err := e.writer.Remove(); err != nil {
		t.Fatal(err)
	}
	done := make(chan bool, 1)
	e.push(event{func(m *model.Model) { m.DeletePod(model.Key{Namespace: "x", Name: "b"}) }, model.Key{Namespace: "x", Name: "b"}, done})
	if err := e.step(); err == nil {
		t.Error("changing a table that is not there succeeded")
	}
	select {
	case <-done:
		t.Error("a waiter was let go though the kernel refused")
	default:
	}
	e.synced = false
	if err := e.step(); err != nil {
		t.Fatal(err)
	}
	<-done
}

func TestGuardGivesUp(t *testing.T) {
	e, err := New(Config{NodeName: "here", Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0), Instance: "t"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := e.Guard(ctx, pod("a", "", "here"), []string{"10.0.0.1"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that nobody enforces", err)
	}
	host := pod("h", "", "here")
	host.Spec.HostNetwork = true
	if err := e.Guard(ctx, host, []string{"10.0.0.1"}); err != nil {
		t.Errorf("a pod of the host's network waits: %v", err)
	}
}

func newModelFor(t *testing.T) *model.Model {
	t.Helper()
	m := model.New()
	m.SetPod(model.Pod{Key: model.Key{Namespace: "x", Name: "b"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Local: true})
	m.SetPolicy(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"}})
	return m
}
