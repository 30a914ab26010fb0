package api_test

import (
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestMetricsGroup: both versions are served, a metrics-server that registers
// itself takes the whole group over, and it comes back when that one goes.
func TestMetricsGroup(t *testing.T) {
	env := apitest.StartEnv(t)
	services := registration.NewForConfigOrDie(env.Config).ApiregistrationV1().APIServices()
	events, err := services.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	const v1, beta = "v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"
	have := map[string]bool{} // name -> foreign
	until := func(what string, done func() bool) {
		t.Helper()
		for !done() {
			e, ok := <-events.ResultChan()
			if !ok {
				t.Fatalf("the watch ended before %s", what)
			}
			s, ok := e.Object.(*apiregistrationv1.APIService)
			if !ok || s.Spec.Group != "metrics.k8s.io" {
				continue
			}
			delete(have, s.Name)
			if e.Type != watch.Deleted {
				have[s.Name] = s.Spec.Service != nil
			}
		}
	}
	ours := func() bool {
		foreign, ok := have[v1]
		foreignBeta, okBeta := have[beta]
		return ok && okBeta && !foreign && !foreignBeta
	}
	until("both versions were registered", ours)
	client := metricsclient.NewForConfigOrDie(env.Config)
	if list, err := client.MetricsV1beta1().NodeMetricses().List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("v1beta1: %v, %v", list, err)
	}
	if list, err := client.MetricsV1().PodMetricses("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("v1: %v, %v", list, err)
	}
	if _, err := client.MetricsV1().NodeMetricses().Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a node that is not there: %v", err)
	}
	resources, err := clients(t, env.Config).Discovery().ServerResourcesForGroupVersion("metrics.k8s.io/v1")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resources.APIResources {
		if !slices.Equal(r.Verbs, metav1.Verbs{"get", "list"}) {
			t.Errorf("%s has the verbs %v", r.Name, r.Verbs)
		}
	}

	s, err := services.Get(t.Context(), beta, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics-server"}
	s.Spec.InsecureSkipTLSVerify = true
	if _, err := services.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("our other version went", func() bool { _, left := have[v1]; return have[beta] && !left })
	if err := services.Delete(t.Context(), beta, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("both versions came back", ours)
}
