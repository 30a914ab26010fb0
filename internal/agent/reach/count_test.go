package reach

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestRequestKinds(t *testing.T) {
	for _, c := range []struct{ method, target, resource, verb string }{
		{http.MethodGet, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn", "pods", "list"},
		{http.MethodGet, "/api/v1/pods?watch=true", "pods", "watch"},
		{http.MethodGet, "/api/v1/nodes/n", "nodes", "get"},
		{http.MethodPatch, "/api/v1/namespaces/d/pods/p/status", "pods/status", "patch"},
		{http.MethodDelete, "/api/v1/namespaces/d/pods/p", "pods", "delete"},
		{http.MethodPost, "/api/v1/namespaces/d/serviceaccounts/default/token", "serviceaccounts/token", "create"},
		{http.MethodPut, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n", "leases", "update"},
		{http.MethodGet, "/api/v1/namespaces/d", "namespaces", "get"},
		{http.MethodGet, "/readyz", "other", "get"},
		{http.MethodGet, "/apis/apps", "other", "get"},
	} {
		resource, verb := kindOf(httptest.NewRequest(c.method, c.target, nil))
		if resource != c.resource || verb != c.verb {
			t.Errorf("%s %s is counted as %s %s, want %s %s", c.method, c.target, verb, resource, c.verb, c.resource)
		}
	}
}
