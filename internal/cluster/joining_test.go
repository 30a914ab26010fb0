package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	podnetwork "github.com/berth-dev/berth/internal/network"
)

// tlsServer shows the certificates of an API server to those who connect, and
// says how much it was sent.
func tlsServer(t *testing.T, c *Config, at string) (address string) {
	t.Helper()
	f, _, err := c.certificates(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(f.API.Cert, f.API.Key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", at, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if n, _ := conn.Read(make([]byte, 1)); n > 0 {
				t.Error("a joining node sent something before it knew the server")
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// TestPinnedServer: a joining node believes the server whose CA has the hash,
// and no other; it sends nothing before.
func TestPinnedServer(t *testing.T) {
	c, other := certified(t), certified(t)
	address := tlsServer(t, c, "127.0.0.1:0")
	hash, err := CAHash(c.Path("pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(c.Path("pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, typed := range []string{hash, strings.ToUpper(hash)} {
		if got, err := pinned(t.Context(), address, typed); err != nil || string(got) != string(ca) {
			t.Errorf("--ca-hash %s: %q, %v", typed, got, err)
		}
	}
	if _, _, err := other.certificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	foreign, err := CAHash(other.Path("pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := CAHash(c.Path("pki", "apiserver.crt"))
	if err != nil {
		t.Fatal(err)
	}
	for name, wrong := range map[string]string{"another cluster": foreign, "the server's own key": leaf, "nothing": ""} {
		if ca, err := pinned(t.Context(), address, wrong); err == nil || !strings.Contains(err.Error(), "--ca-file") {
			t.Errorf("the hash of %s: %q, %v", name, ca, err)
		}
	}
	// The right CA, but the certificate is not for the address that was typed.
	elsewhere := tlsServer(t, c, "127.0.0.2:0")
	if _, err := pinned(t.Context(), elsewhere, hash); err == nil || !strings.Contains(err.Error(), "checking the server's certificate") {
		t.Errorf("another address: %v", err)
	}
}

// TestClusterCA: what proves the server comes from --ca-file before --ca-hash, and
// one of them is needed.
func TestClusterCA(t *testing.T) {
	file := t.TempDir() + "/ca.crt"
	if err := os.WriteFile(file, []byte("PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		join        Join
		want, fault string
	}{
		{Join{CAFile: file, CAHash: "sha256:00"}, "PEM", ""},
		{Join{CAFile: file + ".none"}, "", "--ca-file"},
		{Join{}, "", "give --ca-hash or --ca-file with --token"},
	} {
		u := &up{Config: &Config{Join: c.join}}
		got, err := u.clusterCA(t.Context())
		if string(got) != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%+v: %q, %v", c.join, got, err)
		}
	}
}

// TestLearn: a node takes its cluster's CIDRs, domain and network from the
// ConfigMap, keeps them for a start without a server, and refuses nonsense.
func TestLearn(t *testing.T) {
	facts := func(text string) *v1.ConfigMap {
		return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: factsNamespace, Name: factsName},
			Data: map[string]string{factsKey: text}}
	}
	for _, c := range []struct {
		name  string
		cm    *v1.ConfigMap
		known string // ClusterCIDR from the last start
		want  string
		fault string
	}{
		{"first start", facts(`{"clusterCIDR":"10.1.0.0/16","serviceCIDR":"10.2.0.0/16","clusterDomain":"c.test","network":"vxlan"}`), "",
			"10.1.0.0/16", ""},
		{"the cluster changed its mind", facts(`{"clusterCIDR":"10.3.0.0/16","serviceCIDR":"10.2.0.0/16","network":"vxlan"}`),
			"10.1.0.0/16",
			"10.3.0.0/16", ""},
		{"no server, first start", nil, "", "", "reading the cluster's facts"},
		{"no server, later start", nil, "10.1.0.0/16", "10.1.0.0/16", ""},
		{"not JSON", facts("{"), "", "", "ConfigMap kube-public/berth-cluster"},
		{"no CIDR", facts("{}"), "", "", "ConfigMap kube-public/berth-cluster"},
		{"overlap", facts(`{"clusterCIDR":"10.1.0.0/16","serviceCIDR":"10.1.2.0/24"}`), "", "", "overlap"},
		{"a newer network", facts(`{"clusterCIDR":"10.1.0.0/16","serviceCIDR":"10.2.0.0/16","network":"pigeon"}`), "", "", "pigeon"},
	} {
		client := fake.NewClientset()
		if c.cm != nil {
			client = fake.NewClientset(c.cm)
		}
		u := &up{Config: &Config{Settings: Settings{Role: RoleNode, ClusterCIDR: c.known}, DataDir: t.TempDir()}, client: client,
			log: slog.New(slog.DiscardHandler)}
		err := u.learn(t.Context())
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v, want %q", c.name, err, c.fault)
		}
		if c.want != "" && u.ClusterCIDR != c.want {
			t.Errorf("%s: pods have %q, want %q", c.name, u.ClusterCIDR, c.want)
		}
		kept, err := u.stored()
		if err != nil {
			t.Fatal(err)
		}
		if learned := c.cm != nil && c.fault == ""; (kept.ClusterCIDR == c.want) != learned && c.want != "" {
			t.Errorf("%s: kept %q", c.name, kept.ClusterCIDR)
		}
	}
}

// TestClusterInfo: what a cluster publishes for those who join, and who may do
// what. A bootstrap token reads one ConfigMap and asks for a certificate; no
// more.
func TestClusterInfo(t *testing.T) {
	client := fake.NewClientset()
	published := shared{ClusterCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16", ClusterDomain: "c.test", Network: podnetwork.VXLAN}
	for range 2 { // it is idempotent
		if err := publishClusterInfo(t.Context(), client, published); err != nil {
			t.Fatal(err)
		}
	}
	cm, err := client.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "berth-cluster", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got shared
	if err := json.Unmarshal([]byte(cm.Data["cluster.json"]), &got); err != nil || got != published {
		t.Errorf("published %+v, %v", got, err)
	}
	bindings, err := client.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var granted []string
	for _, b := range bindings.Items {
		granted = append(granted, b.RoleRef.Name+" to "+subject(b.Subjects))
	}
	slices.Sort(granted)
	want := []string{
		"berth:node to system:nodes",
		"system:certificates.k8s.io:certificatesigningrequests:nodeclient to system:bootstrappers",
		"system:certificates.k8s.io:certificatesigningrequests:selfnodeclient to system:nodes",
		"system:node-bootstrapper to system:bootstrappers",
	}
	if !slices.Equal(granted, want) {
		t.Errorf("granted\n%s, want\n%s", strings.Join(granted, "\n"), strings.Join(want, "\n"))
	}
	role, err := client.RbacV1().ClusterRoles().Get(t.Context(), "berth:node", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range role.Rules {
		if slices.Contains(r.Resources, "secrets") || slices.Contains(r.Verbs, "*") || slices.Contains(r.Resources, "*") {
			t.Errorf("nodes may %v %v", r.Verbs, r.Resources)
		}
		if slices.Contains(r.Resources, "pods") && slices.Contains(r.Verbs, "get") {
			t.Error("get of pods is the Node authorizer's: a node gets its own alone")
		}
	}
	read, err := client.RbacV1().Roles("kube-public").Get(t.Context(), "berth-cluster", metav1.GetOptions{})
	if err != nil || len(read.Rules) != 1 || !slices.Equal(read.Rules[0].ResourceNames, []string{"berth-cluster"}) ||
		!slices.Equal(read.Rules[0].Verbs, []string{"get"}) {
		t.Errorf("those who join may read %+v, %v", read.Rules, err)
	}
}

func subject(list []rbacv1.Subject) string {
	var out []string
	for _, s := range list {
		out = append(out, s.Name)
	}
	return strings.Join(out, ",")
}

// TestTokens: a token is a Secret that the API server's authenticator and
// kubeadm know; its secret half is shown once.
func TestTokens(t *testing.T) {
	client := fake.NewClientset()
	forDay, err := CreateToken(t.Context(), client, 24*time.Hour, "rack 3")
	if err != nil {
		t.Fatal(err)
	}
	endless, err := CreateToken(t.Context(), client, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(forDay.String()) != 23 || forDay.String() == endless.String() {
		t.Errorf("tokens %q and %q", forDay, endless)
	}
	secret, err := client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+forDay.ID, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	data := secret.StringData
	ends, err := time.Parse(time.RFC3339, data["expiration"])
	if err != nil || time.Until(ends) > 24*time.Hour || time.Until(ends) < 23*time.Hour {
		t.Errorf("it ends at %v, %v", ends, err)
	}
	if string(secret.Type) != "bootstrap.kubernetes.io/token" || data["token-id"] != forDay.ID || data["token-secret"] != forDay.Secret ||
		data["usage-bootstrap-authentication"] != "true" || data["description"] != "rack 3" {
		t.Errorf("the Secret is %+v", secret)
	}
	other, err := client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+endless.ID, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ends := other.StringData["expiration"]; ends {
		t.Errorf("--ttl 0 ends: %v", other.StringData)
	}
	if err := DeleteToken(t.Context(), client, forDay.ID); err != nil {
		t.Error(err)
	}
	if err := DeleteToken(t.Context(), client, forDay.ID); err == nil || !strings.Contains(err.Error(), "berth token list") {
		t.Errorf("deleted twice: %v", err)
	}
}

// TestListedTokens: a list has IDs and ends, never the secret half.
func TestListedTokens(t *testing.T) {
	client := fake.NewClientset(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"},
		Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{"token-id": []byte("abcdef"),
			"token-secret": []byte("0123456789abcdef"),
			"expiration":   []byte("2030-01-02T03:04:05Z"), "description": []byte("rack 3")}})
	list, err := Tokens(t.Context(), client)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	want := Token{ID: "abcdef", Description: "rack 3", Expires: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
	if list[0].ID != want.ID || !list[0].Expires.Equal(want.Expires) || list[0].Description != want.Description || list[0].Secret != "" {
		t.Errorf("listed %+v, want %+v", list[0], want)
	}
}

// TestWaitNodeReady: a start is over when the Node says Ready in words of this
// start, or the agent ended again and again.
func TestWaitNodeReady(t *testing.T) {
	began := time.Now()
	node := func(name string, status v1.ConditionStatus, message string, at time.Time) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{
			{Type: v1.NodeReady, Status: status, Message: message, LastHeartbeatTime: metav1.NewTime(at)}}}}
	}
	late := began.Add(time.Minute)
	// The word of an earlier start comes first, that of this one behind it.
	both := node("n", v1.ConditionTrue, "", began.Add(-time.Minute))
	both.Status.Conditions = append(both.Status.Conditions,
		node("n", v1.ConditionFalse, "container runtime network not ready", late).Status.Conditions...)
	broken := errors.New("the kubelet configuration does not fit this host")
	for _, c := range []struct {
		name    string
		network podnetwork.Mode
		nodes   []*v1.Node
		ends    []error
		state   string
		fault   string
	}{
		{name: "Ready", nodes: []*v1.Node{node("n", v1.ConditionTrue, "", late)}, state: "Ready"},
		{name: "another node is Ready", nodes: []*v1.Node{node("m", v1.ConditionTrue, "", late)}, ends: []error{broken, broken, broken},
			fault: "3 times in a row"},
		{name: "Ready before this start, not now", network: podnetwork.None, state: "not Ready before a pod network is installed",
			nodes: []*v1.Node{both}},
		{name: "a runtime that stumbles twice", nodes: []*v1.Node{node("n", v1.ConditionTrue, "", late)}, ends: []error{broken, broken},
			state: "Ready"},
		{name: "it waits for a CNI of the user's", network: podnetwork.None, state: "not Ready before a pod network is installed",
			nodes: []*v1.Node{node("n", v1.ConditionFalse, "container runtime network not ready: no configuration", late)}},
		{name: "asked to end", nodes: []*v1.Node{node("n", v1.ConditionTrue, "", late)}, ends: []error{nil, nil, nil}, state: "Ready"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset()
		u := &up{Config: &Config{Settings: Settings{NodeName: "n", Network: c.network}, DataDir: "/d"}, clock: clock{began: began},
			informers: informers.NewSharedInformerFactory(client, 0)}
		u.informers.Core().V1().Nodes().Informer()
		u.informers.Start(ctx.Done())
		u.informers.WaitForCacheSync(ctx.Done())
		ended := make(chan error, len(c.ends))
		for _, err := range c.ends {
			ended <- err
		}
		for _, n := range c.nodes {
			if _, err := client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		state, err := u.waitNodeReady(ctx, ended)
		if !strings.HasPrefix(state, c.state) || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %q, %v; want %q, %q", c.name, state, err, c.state, c.fault)
		}
		cancel()
		u.informers.Shutdown()
	}
}
