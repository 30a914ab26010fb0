package cluster

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/pki"
)

// TestMetricsNeedARight: a local user or a pod on the host network reads
// nothing without a token; an account with the right does.
func TestMetricsNeedARight(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if review.Spec.Token != "made-up" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true,
				User: authenticationv1.UserInfo{Username: review.Spec.Token}}
		}
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		n := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "prometheus" && n != nil && n.Path == "/metrics" && n.Verb == "get"
		return true, review, nil
	})
	shown := false
	h := guardMetrics(func() kubernetes.Interface { return client },
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { shown = true }))
	for header, want := range map[string]int{"": 401, "Basic abc": 401, "Bearer made-up": 401, "Bearer nobody": 403,
		"Bearer prometheus": 200} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		w := httptest.NewRecorder()
		shown = false
		h.ServeHTTP(w, r)
		if w.Code != want || shown != (want == http.StatusOK) {
			t.Errorf("%q: got %d %s, metrics shown %v; want %d", header, w.Code, w.Body, shown, want)
		}
	}
}

// TestMetricsPortIsSecure: the port of controllers and scheduler speaks TLS with
// the API server's certificate, the renewed one too; health is open, metrics are
// for certificates of this cluster whose user may read them.
func TestMetricsPortIsSecure(t *testing.T) {
	c := newControlPlane(t, 0)
	c.metrics, c.up.client = newRegistry(), c.client(t, c.files.SuperAdminKubeconfig)
	srv, err := c.metricsServer()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.ServeTLS(l, "", "") }()
	defer func() { srv.Close(); <-done }()
	foreign, err := pki.EnsureCA(t.TempDir(), "ca", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	eve, _, _, err := foreign.EnsureLeaf(t.TempDir(), "eve", pki.Leaf{CommonName: "eve", Organization: []string{"system:masters"},
		Client: true},
		time.Now())
	if err != nil {
		t.Fatal(err)
	}
	as := func(cert, path string) int { // 0: the connection was refused
		client := c.ownPorts()
		defer client.CloseIdleConnections()
		if cert != "" {
			own, err := tls.LoadX509KeyPair(cert, cert[:len(cert)-len("crt")]+"key")
			if err != nil {
				t.Fatal(err)
			}
			client.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{own}
		}
		answer, err := client.Get("https://" + l.Addr().String() + path)
		if err != nil {
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	super, proxy := c.Path("pki", "super-admin.crt"), c.Path("pki", "proxy.crt")
	for _, test := range []struct {
		cert, path string
		want       int
	}{
		{"", "/healthz", 200}, {"", "/livez", 200}, {"", "/metrics", 401}, {"", "/debug/pprof/", 404}, {proxy, "/metrics", 403},
		{super, "/metrics", 200}, {eve, "/metrics", 0},
	} {
		if got := as(test.cert, test.path); got != test.want {
			t.Errorf("%s with certificate %q: %d, want %d", test.path, test.cert, got, test.want)
		}
	}
	answer, err := http.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusBadRequest {
		t.Errorf("clear text is answered with %d", answer.StatusCode)
	}
	serial := func() string {
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true}) // a renewed one begins later
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	if _, _, err := c.certificates(time.Now().Add(pki.DefaultLeafLife - time.Hour)); err != nil {
		t.Fatal(err)
	}
	if serial() == before {
		t.Error("the port goes on with the certificate that was renewed")
	}
}
