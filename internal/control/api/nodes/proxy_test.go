package nodes_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/control/api/nodelink"
)

// listening is a port of this host, for api.Config.
func listening(t *testing.T) (net.Listener, int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l, l.Addr().(*net.TCPAddr).Port
}

// claims makes the node say in its status, which it may write itself, that its
// agent is at an address and port.
func claims(t *testing.T, client kubernetes.Interface, name, address string, port int) {
	t.Helper()
	n, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n, err = client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestNodeProxyDoesNotReachTheServer is finding 2 of the security review
// (CVE-2022-3294): a node that says its agent is where the API server listens
// makes nodes/proxy read Secrets for a user that may not.
func TestNodeProxyDoesNotReachTheServer(t *testing.T) {
	listener, port := listening(t)
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) { c.Listener = listener }))
	admin := kubernetes.NewForConfigOrDie(env.Config)
	ctx := t.Context()
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "crown"}, StringData: map[string]string{"k": "jewels"}}
	if _, err := admin.CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mayProxy(t, admin, "prom")
	prom := kubernetes.NewForConfigOrDie(env.As(t, "prom"))
	for _, address := range []string{"127.0.0.1", "localhost", "LOCALHOST", "::1", "::ffff:127.0.0.1", "169.254.169.254", "0.0.0.0",
		"224.0.0.1"} {
		claims(t, admin, "here", address, port)
		for _, id := range []string{"here", fmt.Sprintf("here:%d", port), fmt.Sprintf("https:here:%d", port), "http:here:1"} {
			body, err := prom.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", id,
				"proxy/api/v1/namespaces/default/secrets/crown").DoRaw(ctx)
			if err == nil || !strings.Contains(string(body), "address not allowed") {
				t.Errorf("nodes/%s/proxy with address %s: %v %s, want: address not allowed", id, address, err, body)
			}
		}
	}
	// The same for what goes to the agent for a pod.
	claims(t, admin, "here", "127.0.0.1", port)
	account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{NodeName: "here",
		Containers: []v1.Container{{Name: "c", Image: "i"}}}}
	if _, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"log", "exec", "attach", "portforward"} {
		verb := "POST"
		if sub == "log" {
			verb = "GET"
		}
		body, err := admin.CoreV1().RESTClient().Verb(verb).AbsPath("/api/v1/namespaces/default/pods/p", sub).
			Param("command", "x").Param("stdout", "true").DoRaw(ctx)
		if err == nil || !strings.Contains(string(body), "address not allowed") {
			t.Errorf("pods/p/%s to an agent on loopback: %v %s, want: address not allowed", sub, err, body)
		}
	}
}

// mayProxy lets a user read through nodes/proxy and nothing else.
func mayProxy(t *testing.T, admin kubernetes.Interface, user string) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "proxy-" + user},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes/proxy"}, Verbs: []string{"get"}}}}
	if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	prom := rbacReview(user)
	for { // until the authorizer has seen the binding; the test's deadline bounds it
		r, err := admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), prom.DeepCopy(), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Status.Allowed {
			return
		}
	}
}

// fakeAgent serves TLS with a certificate and says that it was reached.
func fakeAgent(t *testing.T, cert tls.Certificate) (address string, port int) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reached") }))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.StartTLS()
	t.Cleanup(s.Close)
	host, text, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if port, err = strconv.Atoi(text); err != nil {
		t.Fatal(err)
	}
	return host, port
}

// TestOwnAgentOnLoopback: the agent in the server's process may be on loopback;
// another node that claims its place may not, and neither may the same node
// with another port.
func TestOwnAgentOnLoopback(t *testing.T) {
	ca := apitest.NewAgentCA(t)
	host, port := fakeAgent(t, ca.Serving(t, "own", "127.0.0.1", "localhost"))
	_, other := fakeAgent(t, ca.Serving(t, "own", "127.0.0.1"))
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) {
		c.PKI.KubeletCA, c.LocalAgent = ca.File(), nodelink.LocalAgent{Node: "own", Port: port}
	}))
	admin := kubernetes.NewForConfigOrDie(env.Config)
	get := func(id string) string {
		body, err := admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", id, "proxy/x").DoRaw(t.Context())
		if err != nil {
			return err.Error() + ": " + string(body)
		}
		return string(body)
	}
	for _, address := range []string{host, "localhost"} {
		claims(t, admin, "own", address, port)
		if got := get("own"); got != "reached" {
			t.Errorf("the own agent at %s: %s", address, got)
		}
	}
	claims(t, admin, "own", host, port)
	if got := get(fmt.Sprintf("https:own:%d", other)); !strings.Contains(got, "address not allowed") {
		t.Errorf("another port of the own machine: %s", got)
	}
	claims(t, admin, "own", host, other)
	if got := get("own"); !strings.Contains(got, "address not allowed") {
		t.Errorf("the own node with another agent port: %s", got)
	}
	claims(t, admin, "stranger", host, port)
	if got := get("stranger"); !strings.Contains(got, "address not allowed") {
		t.Errorf("a stranger that claims the own agent's place: %s", got)
	}
}

// TestAgentsCertificateIsTheNodes: the CA and the address are not enough, the
// certificate must be that node's.
func TestAgentsCertificateIsTheNodes(t *testing.T) {
	ca := apitest.NewAgentCA(t)
	host, own := fakeAgent(t, ca.Serving(t, "own", "127.0.0.1"))
	_, other := fakeAgent(t, ca.Serving(t, "other", "127.0.0.1"))
	_, server := fakeAgent(t, ca.Other(t, "kube-apiserver", "127.0.0.1"))
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) { c.PKI.KubeletCA, c.ProxyToLoopback = ca.File(), true }))
	admin := kubernetes.NewForConfigOrDie(env.Config)
	for _, c := range []struct {
		who  string
		port int
		want string
	}{
		{"its own agent", own, ""},
		{"another node's agent", other, `want \"system:node:own\" of \"system:nodes\"`},
		{"no agent at all", server, `want \"system:node:own\" of \"system:nodes\"`},
		{"its own agent again", own, ""},
	} {
		claims(t, admin, "own", host, c.port)
		body, err := admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/own/proxy/x").DoRaw(context.Background())
		switch {
		case c.want == "" && (err != nil || string(body) != "reached"):
			t.Errorf("%s: %v %s", c.who, err, body)
		case c.want != "" && (err == nil || !strings.Contains(string(body), c.want)):
			t.Errorf("%s: %v %s, want ...%s", c.who, err, body, c.want)
		}
	}
	// A verified connection of one node is not another's.
	claims(t, admin, "own", host, own)
	if body, err := admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/own/proxy/x").DoRaw(t.Context()); err != nil {
		t.Fatal(err, string(body))
	}
	claims(t, admin, "thief", host, own)
	if _, err := admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/thief/proxy/x").DoRaw(t.Context()); err == nil {
		t.Error("a node that claims another's agent was answered by it")
	}
}

func rbacReview(user string) *authorizationv1.SubjectAccessReview {
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Subresource: "proxy", Name: "here"}}}
}
