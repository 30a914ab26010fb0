package api_test

import (
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestZPages: /statusz and /flagz answer in text, and as objects to a client
// that asks for them; no one reads them unasked.
func TestZPages(t *testing.T) {
	env := apitest.StartEnv(t)
	f := &fixture{config: env.Config}
	for _, c := range []struct{ path, accept, want string }{
		{"/statusz", "text/plain", "apiserver statusz"},
		{"/statusz", "application/json;as=Statusz;v=v1beta1;g=config.k8s.io", `"kind":"Statusz"`},
		{"/flagz", "text/plain", "service-cluster-ip-range"},
		{"/flagz", "application/json;as=Flagz;v=v1beta1;g=config.k8s.io", `"service-account-issuer"`},
	} {
		if code, body := f.raw(t, "GET", c.path, c.accept, nil); code != 200 || !strings.Contains(string(body), c.want) {
			t.Errorf("%s as %s: %d %.300s, want %s", c.path, c.accept, code, body, c.want)
		}
	}
	client, err := rest.HTTPClientFor(env.As(t, "stranger"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/statusz", "/flagz"} {
		if code, _ := request(t, client, "GET", env.Config.Host+path, "text/plain", nil); code != 403 {
			t.Errorf("a stranger reads %s: %d", path, code)
		}
	}
}
