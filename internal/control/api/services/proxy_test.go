package services_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func testProxy(t *testing.T, f *fixture) {
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) }))
	web.Listener.Close()
	web.Listener = listenOffLoopback(t)
	web.Start()
	t.Cleanup(web.Close)
	u, err := url.Parse(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	f.create(t, service("web"))
	get := func(name string) (string, error) {
		raw, err := f.CoreV1().RESTClient().Get().MaxRetries(0).Namespace(ns).Resource("services").Name(name).SubResource("proxy").Suffix(
			"x").DoRaw(bg())
		return string(raw), err
	}
	if _, err := get("web"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without endpoints got %v, want 503", err)
	}
	yes := true
	_, err = f.DiscoveryV1().EndpointSlices(ns).Create(bg(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("web"), Port: new(int32(port))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{u.Hostname()}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web", "web:web", "web:80", "http:web:web"} {
		if got, err := get(name); err != nil || got != "/x" {
			t.Errorf("proxy to %s gave %q, %v", name, got, err)
		}
	}
	client, err := rest.HTTPClientFor(f.config)
	if err != nil {
		t.Fatal(err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Get(f.config.Host + "/api/v1/namespaces/" + ns + "/services/web/proxy?a=b")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if at := resp.Header.Get("Location"); resp.StatusCode != 301 || !strings.HasSuffix(at, "/proxy/?a=b") {
		t.Errorf("proxy without a path: %d to %q", resp.StatusCode, at)
	}
	if _, err := get("web:nothing"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("an unknown port gave %v, want 503", err)
	}
}

// listenOffLoopback listens on an address that an endpoint may have.
func listenOffLoopback(t *testing.T) net.Listener {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			l, err := net.Listen("tcp", net.JoinHostPort(n.IP.String(), "0"))
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
	}
	t.Skip("this host has no IPv4 address but loopback, and endpoints may not lie there")
	return nil
}
