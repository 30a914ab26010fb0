package api_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// Clients, upstream's suite among them, look for checks by name.
func TestHealthChecksByName(t *testing.T) {
	c := clients(t, apitest.Start(t))
	common := []string{"ping", "log", "etcd", "autoregister-completion"}
	for _, hook := range []string{"start-apiserver-admission-initializer", "generic-apiserver-start-informers",
		"start-apiextensions-informers",
		"start-apiextensions-controllers", "crd-informer-synced", "bootstrap-controller", "rbac/bootstrap-roles",
		"scheduling/bootstrap-system-priority-classes", "start-system-namespaces-controller", "start-service-ip-repair-controllers",
		"start-cluster-authentication-info-controller", "start-kube-aggregator-informers", "apiservice-registration-controller",
		"apiservice-status-local-available-controller", "apiservice-status-remote-available-controller",
		"kube-apiserver-autoregistration", "apiservice-openapi-controller", "storage-readiness"} {
		common = append(common, "poststarthook/"+hook)
	}
	for path, more := range map[string][]string{"/healthz": nil, "/livez": nil, "/readyz": {"informer-sync", "shutdown"}} {
		raw, err := c.Discovery().RESTClient().Get().AbsPath(path).Param("verbose", "").DoRaw(t.Context())
		if err != nil || !strings.Contains(string(raw), path[1:]+" check passed") {
			t.Fatalf("%s: %v\n%s", path, err, raw)
		}
		for _, name := range append(more, common...) {
			if !strings.Contains(string(raw), "[+]"+name+" ok\n") {
				t.Errorf("%s has no check %s", path, name)
			}
		}
	}
	if _, err := c.Discovery().RESTClient().Get().AbsPath("/readyz/autoregister-completion").DoRaw(t.Context()); err != nil {
		t.Errorf("one check alone: %v", err)
	}
}

func TestComponentStatuses(t *testing.T) {
	c := clients(t, apitest.Start(t))
	//lint:ignore SA1019 old clients ask for it
	all := c.CoreV1().ComponentStatuses()
	list, err := all.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "etcd-0" || list.Items[0].Conditions[0].Status != "True" {
		t.Errorf("listed %+v, %v", list, err)
	}
	one, err := all.Get(t.Context(), "etcd-0", metav1.GetOptions{})
	if err != nil || one.Conditions[0].Message != "ok" {
		t.Errorf("read %+v, %v", one, err)
	}
	if _, err := all.Get(t.Context(), "nobody", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a component that is not there: %v", err)
	}
	if list, err = all.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=other"}); err != nil || len(list.Items) != 0 {
		t.Errorf("listed by another name: %+v, %v", list, err)
	}
	raw, err := c.CoreV1().RESTClient().Get().Resource("componentstatuses").SetHeader("Accept",
		"application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil || !strings.Contains(string(raw), `"cells":["etcd-0","Healthy","ok",""]`) {
		t.Errorf("table %s, %v", raw, err)
	}
}
