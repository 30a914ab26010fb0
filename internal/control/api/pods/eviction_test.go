package pods_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// evict makes one attempt; the typed client would wait and try again where the
// answer says so.
func evict(f *fixture, name string, o *metav1.DeleteOptions) error {
	return f.CoreV1().RESTClient().Post().MaxRetries(0).Namespace(ns).Resource("pods").Name(name).SubResource("eviction").
		Body(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, DeleteOptions: o}).Do(bg()).Error()
}

func testEvictionFree(t *testing.T, f *fixture) {
	f.running(t, "unguarded", true)
	if err := evict(f, "unguarded", &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if p := f.get(t, "unguarded"); p.DeletionTimestamp != nil || condition(p, v1.DisruptionTarget) != nil {
		t.Errorf("a dry run changed the pod: %+v", p)
	}
	if err := evict(f, "unguarded", &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("wrong")}); !apierrors.IsConflict(err) {
		t.Errorf("a wrong UID gave %v, want Conflict", err)
	}
	if err := evict(f, "unguarded", &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](7)}); err != nil {
		t.Fatal(err)
	}
	p := f.get(t, "unguarded")
	c := condition(p, v1.DisruptionTarget)
	if p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 7 || c == nil || c.Reason != "EvictionByEvictionAPI" ||
		c.Message != "Eviction API: evicting" {
		t.Errorf("evicted pod has grace %v, condition %+v", p.DeletionGracePeriodSeconds, c)
	}
	f.create(t, newPod("old-client"))
	body := []byte(`{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"old-client"}}`)
	err := f.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name("old-client").SubResource("eviction").
		SetHeader("Content-Type", "application/json").Body(body).Do(bg()).Error()
	if err != nil {
		t.Errorf("evicting as an old client: %v", err)
	}
	f.gone(t, "old-client")
	if err := evict(f, "never-was", nil); !apierrors.IsNotFound(err) {
		t.Errorf("evicting a missing pod gave %v, want NotFound", err)
	}
}

// budget makes a disruption budget with the given status.
func budget(t *testing.T, f *fixture, name, app string, s policyv1.PodDisruptionBudgetStatus) {
	t.Helper()
	b, err := f.PolicyV1().PodDisruptionBudgets(ns).Create(bg(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(1)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.Status = s
	if _, err := f.PolicyV1().PodDisruptionBudgets(ns).UpdateStatus(bg(), b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func testEvictionBudget(t *testing.T, f *fixture) {
	app := func(name string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Labels = map[string]string{"app": name} }
	}
	for i := range 2 {
		f.running(t, fmt.Sprintf("guarded-%d", i), true, app("guarded"))
	}
	budget(t, f, "guard", "guarded", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1, CurrentHealthy: 2,
		DesiredHealthy: 2, ExpectedPods: 2})
	if err := evict(f, "guarded-0", nil); err != nil {
		t.Fatal(err)
	}
	b, err := f.PolicyV1().PodDisruptionBudgets(ns).Get(bg(), "guard", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := b.Status.DisruptedPods["guarded-0"]; b.Status.DisruptionsAllowed != 0 || !ok {
		t.Errorf("budget after one eviction: %+v", b.Status)
	}
	s := status(t, evict(f, "guarded-1", nil))
	if s.Code != 429 || s.Message != "Cannot evict pod as it would violate the pod's disruption budget." ||
		s.Details.RetryAfterSeconds != 0 ||
		len(s.Details.Causes) != 1 || s.Details.Causes[0].Type != "DisruptionBudget" ||
		s.Details.Causes[0].Message != "The disruption budget guard needs 2 healthy pods and has 2 currently" {
		t.Errorf("second eviction gave %+v", s)
	}
	f.running(t, "unsettled", true, app("unsettled"))
	budget(t, f, "slow", "unsettled", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 0, DisruptionsAllowed: 1})
	s = status(t, evict(f, "unsettled", nil))
	if s.Code != 429 || s.Details.RetryAfterSeconds != 10 ||
		s.Details.Causes[0].Message != "The disruption budget slow is still being processed by the server." {
		t.Errorf("eviction under an unsettled budget gave %+v", s)
	}
	budget(t, f, "slow-too", "unsettled", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1})
	hc, err := rest.HTTPClientFor(f.config)
	if err != nil {
		t.Fatal(err)
	}
	res, err := hc.Post(f.config.Host+"/api/v1/namespaces/default/pods/unsettled/eviction", "application/json",
		strings.NewReader(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"unsettled"}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var two metav1.Status
	if err := json.NewDecoder(res.Body).Decode(&two); err != nil || res.StatusCode != 500 || two.Code != 500 ||
		two.Status != metav1.StatusFailure {
		t.Errorf("two budgets gave HTTP %d, %+v, %v", res.StatusCode, two, err)
	}
	if p := f.get(t, "unsettled"); p.DeletionTimestamp != nil {
		t.Error("a pod with two budgets was deleted")
	}
}

func testEvictionUnhealthy(t *testing.T, f *fixture) {
	sick := func(p *v1.Pod) { p.Labels = map[string]string{"app": "sick"} }
	f.running(t, "sick", false, sick)
	budget(t, f, "sick", "sick", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 0, CurrentHealthy: 1,
		DesiredHealthy: 1})
	if err := evict(f, "sick", nil); err != nil {
		t.Errorf("evicting an unready pod of a healthy application: %v", err)
	}
	f.create(t, newPod("waiting", sick))
	if err := evict(f, "waiting", nil); err != nil {
		t.Errorf("evicting a pending pod: %v", err)
	}
	f.gone(t, "waiting")
}

// testEvictionRace evicts many pods at once: no more go than the budget allows.
func testEvictionRace(t *testing.T, f *fixture) {
	const pods, allowed = 6, 2
	for i := range pods {
		f.running(t, fmt.Sprintf("racing-%d", i), true, func(p *v1.Pod) { p.Labels = map[string]string{"app": "racing"} })
	}
	budget(t, f, "race", "racing", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: allowed,
		CurrentHealthy: pods, DesiredHealthy: pods - allowed})
	errs := make(chan error, pods)
	for i := range pods {
		go func() { errs <- evict(f, fmt.Sprintf("racing-%d", i), nil) }()
	}
	gone := 0
	for range pods {
		switch err := <-errs; {
		case err == nil:
			gone++
		case !apierrors.IsTooManyRequests(err):
			t.Errorf("an eviction gave %v, want 429", err)
		}
	}
	if gone != allowed {
		t.Errorf("%d pods were evicted at once, the budget allows %d", gone, allowed)
	}
}
