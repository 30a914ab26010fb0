package addresses_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/addresses"
	"github.com/berth-dev/berth/internal/control/api/apitest"
)

const finalizer = "networking.k8s.io/service-cidr-finalizer"

func cidr(name, text string, deleted *metav1.Time, finalizers ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name, DeletionTimestamp: deleted, Finalizers: finalizers},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{text}},
	}
}

func TestJudge(t *testing.T) {
	now := time.Unix(1000, 0)
	long, just := metav1.NewTime(now.Add(-time.Minute)), metav1.NewTime(now.Add(-time.Second))
	in := []netip.Addr{netip.MustParseAddr("10.1.0.5")}
	wide := cidr("wide", "10.0.0.0/8", nil, finalizer)
	wideGoing := cidr("wide", "10.0.0.0/8", &long, finalizer)
	for name, c := range map[string]struct {
		r          *networkingv1.ServiceCIDR
		other      *networkingv1.ServiceCIDR
		used       []netip.Addr
		ready      metav1.ConditionStatus
		finalizers []string
		wake       time.Time
	}{
		"new":       {r: cidr("r", "10.1.0.0/24", nil), ready: metav1.ConditionTrue, finalizers: []string{finalizer}},
		"protected": {r: cidr("r", "10.1.0.0/24", nil, "x", finalizer), ready: metav1.ConditionTrue},
		"in use":    {r: cidr("r", "10.1.0.0/24", &long, finalizer), used: in, ready: metav1.ConditionFalse},
		"covered": {r: cidr("r", "10.1.0.0/24", &long, "x", finalizer), other: wide, used: in, ready: metav1.ConditionFalse,
			finalizers: []string{"x"}},
		"cover goes too":   {r: cidr("r", "10.1.0.0/24", &long, finalizer), other: wideGoing, used: in, ready: metav1.ConditionFalse},
		"unused":           {r: cidr("r", "10.1.0.0/24", &long, finalizer), ready: metav1.ConditionFalse, finalizers: []string{}},
		"unused, too soon": {r: cidr("r", "10.1.0.0/24", &just, finalizer), ready: metav1.ConditionFalse, wake: now.Add(9 * time.Second)},
		"already let go":   {r: cidr("r", "10.1.0.0/24", &long, "x"), ready: metav1.ConditionFalse},
	} {
		all := []*networkingv1.ServiceCIDR{c.r}
		if c.other != nil {
			all = append(all, c.other)
		}
		v := addresses.Evaluate(c.r, all, c.used, now)
		if v.Condition.Status != c.ready || !slices.Equal(v.Finalizers, c.finalizers) || (v.Finalizers == nil) != (c.finalizers == nil) ||
			!v.WakeAt.Equal(c.wake) {
			t.Errorf("%s: got %+v", name, v)
		}
	}
}

// TestMoreRanges fills the configured range, adds another, and takes it away
// again. The server runs the controller.
func TestMoreRanges(t *testing.T) {
	config := apitest.Start(t, apitest.WithConfig(func(c *api.Config) { c.ServiceCIDRs = []string{"10.40.0.0/30"} }))
	client := kubernetes.NewForConfigOrDie(config)
	services := client.CoreV1().Services("default")
	create := func(name string) (*v1.Service, error) {
		return services.Create(t.Context(), &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
	}
	if _, err := create("fits"); err != nil { // beside the kubernetes service
		t.Fatal(err)
	}
	if _, err := create("too-many"); err == nil {
		t.Fatal("a range of two addresses held three services")
	}
	ranges := client.NetworkingV1().ServiceCIDRs()
	if _, err := ranges.Create(t.Context(), cidr("more", "10.41.0.0/28", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, client, func(r *networkingv1.ServiceCIDR) bool {
		return r != nil && slices.Contains(r.Finalizers, finalizer) && meta.IsStatusConditionTrue(r.Status.Conditions, "Ready")
	})
	s, err := create("too-many")
	if err != nil {
		t.Fatal(err)
	}
	if !netip.MustParsePrefix("10.41.0.0/28").Contains(netip.MustParseAddr(s.Spec.ClusterIP)) {
		t.Errorf("the address is %s, want one of the new range", s.Spec.ClusterIP)
	}
	if err := ranges.Delete(t.Context(), "more", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, client, func(r *networkingv1.ServiceCIDR) bool { // it stays while the address is in use
		return r != nil && r.DeletionTimestamp != nil && meta.IsStatusConditionFalse(r.Status.Conditions, "Ready")
	})
}

// await waits for the range "more" to be as wanted; nil means gone.
func await(t *testing.T, client kubernetes.Interface, want func(*networkingv1.ServiceCIDR) bool) {
	t.Helper()
	list, err := client.NetworkingV1().ServiceCIDRs().List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=more"})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) == 0 && want(nil) || len(list.Items) == 1 && want(&list.Items[0]) {
		return
	}
	w, err := client.NetworkingV1().ServiceCIDRs().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=more",
		ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		r, _ := e.Object.(*networkingv1.ServiceCIDR)
		if e.Type == "DELETED" {
			r = nil
		}
		if want(r) {
			return
		}
	}
	t.Fatal("the watch ended before the range was as wanted")
}
