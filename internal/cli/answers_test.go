package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/proxy"
	"github.com/berth-dev/berth/internal/supervise"
	"github.com/berth-dev/berth/internal/testkit/golden"
)

// began is when everything in these tests happened.
var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// answers are what a running cluster says, by path.
type answers map[string]any

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, ok := a[r.URL.Path]
	if fault, bad := answer.(error); bad || !ok {
		if !ok {
			fault = fmt.Errorf("no answer to %s", r.URL)
		}
		http.Error(w, fault.Error(), http.StatusBadRequest)
		return
	}
	if f, ok := answer.(func(*http.Request) any); ok {
		answer = f(r)
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		panic(err)
	}
}

// running is a data directory that a cluster holds, which answers on its socket.
func running(t *testing.T, a answers) (dataDir string) {
	t.Helper()
	dataDir, err := os.MkdirTemp("", "b") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(dataDir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.WriteString(strconv.Itoa(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	serve(t, cluster.ControlSocket(dataDir), a)
	t.Cleanup(func() { lock.Close(); os.RemoveAll(dataDir) })
	return dataDir
}

// serve answers on a unix socket.
func serve(t *testing.T, socket string, h http.Handler) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
}

// healthy is the status of a cluster with nothing to say but its name.
func healthy(t *testing.T) cluster.Status {
	t.Helper()
	return cluster.Status{PID: 7, Since: time.Now().Add(-time.Hour), Instance: "berth", NodeIP: "192.0.2.2", Ready: true,
		Settings: cluster.Settings{NodeName: "a", ClusterCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/16", ClusterDomain: "cluster.local",
			Ports: cluster.DefaultPorts},
		Parts:  []supervise.State{{Name: "proxy", Since: time.Now().Add(-time.Minute)}},
		Checks: []cluster.Check{{Name: "api", OK: true}}}
}

// TestStatus: what a running cluster says is shown, as text and as JSON. A check
// that fails makes the command fail, so that scripts can wait for health.
func TestStatus(t *testing.T) {
	good, bad := healthy(t), healthy(t)
	bad.Checks = append(bad.Checks, cluster.Check{Name: "store", Detail: "no leader"})
	for _, c := range []struct {
		status cluster.Status
		want   string
		fails  bool
	}{{good, "check     ok   api", false}, {bad, "check     BAD  store        no leader", true}} {
		dir := running(t, answers{"/status": c.status})
		out, err := try(t, "status", "--data-dir", dir)
		if !strings.Contains(out, c.want) || errors.Is(err, errSilent) != c.fails || err != nil && !c.fails {
			t.Errorf("status: %v\n%s", err, out)
		}
		out, err = try(t, "status", "--data-dir", dir, "-o", "json")
		var back cluster.Status
		if err != nil || json.Unmarshal([]byte(out), &back) != nil || back.PID != 7 || len(back.Checks) != len(c.status.Checks) {
			t.Errorf("status -o json: %v\n%s", err, out)
		}
	}
	silent := running(t, answers{"/status": "not a status"})
	if _, err := try(t, "status", "--data-dir", silent); err == nil || !strings.Contains(err.Error(), "does not answer") ||
		!strings.Contains(err.Error(), silent) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("a cluster that does not answer: %v", err)
	}
	nothing := t.TempDir()
	if out, err := try(t, "status", "--data-dir", nothing); !errors.Is(err, errSilent) ||
		out != "down: no cluster runs on "+nothing+"; start one with `berth up`\n" {
		t.Errorf("no cluster: %q, %v", out, err)
	}
}

// TestAlreadyUp: `up --detach` beside a running cluster says so and succeeds;
// without --detach it is refused with the way out.
func TestAlreadyUp(t *testing.T) {
	dir := running(t, answers{"/status": healthy(t)})
	if _, err := try(t, "up", "--detach", "--data-dir", dir, "--node-ip", "192.0.2.2"); err != nil {
		t.Errorf("up --detach: %v", err)
	}
	var held *cluster.ErrRunning
	if _, err := try(t, "up", "--data-dir", dir, "--node-ip", "192.0.2.2"); !errors.As(err, &held) ||
		!strings.Contains(err.Error(), "`berth down`") {
		t.Errorf("up: %v", err)
	}
	silent := running(t, answers{})
	if _, err := try(t, "up", "--detach", "--data-dir", silent, "--node-ip", "192.0.2.2"); err == nil ||
		!strings.Contains(err.Error(), "does not answer") {
		t.Errorf("up --detach beside one that does not answer: %v", err)
	}
}

// TestWhy: the decisions about an object as a story and as JSON; the short names
// of kinds, and a namespace before the name.
func TestWhy(t *testing.T) {
	var asked []string
	record := journal.Record{Time: began, Part: "eviction", Object: journal.Ref{Kind: "Pod", Namespace: "shop", Name: "web-1"},
		Decision: "deleted", Because: []journal.Fact{{Name: "taint", Value: "unreachable"}}}
	known := []journal.Record{record}
	dir := running(t, answers{"/status": healthy(t), "/journal": func(r *http.Request) any {
		q := r.URL.Query()
		asked = append(asked, q.Get("kind")+" "+q.Get("namespace")+"/"+q.Get("name"))
		return known
	}})
	var all strings.Builder
	for _, args := range []string{"pod web-1", "po shop/web-1", "pod web-1 -n shop", "node a", "NO a -n shop", "deploy web", "sts db",
		"cj nightly"} {
		out, err := try(t, append([]string{"why", "--data-dir", dir}, strings.Fields(args)...)...)
		if err != nil {
			t.Errorf("why %s: %v", args, err)
		}
		fmt.Fprintf(&all, "berth why %s: asks for %s\n", args, asked[len(asked)-1])
		if !strings.Contains(out, "deleted (eviction)") || !strings.Contains(out, "    taint: unreachable\n") {
			t.Errorf("why %s:\n%s", args, out)
		}
	}
	golden.Check(t, filepath.Join("testdata", "why.txt"), all.String())
	out, err := try(t, "why", "pod", "web-1", "-o", "json", "--data-dir", dir)
	var back struct{ Decisions []journal.Record }
	if err != nil || json.Unmarshal([]byte(out), &back) != nil || len(back.Decisions) != 1 || back.Decisions[0].Decision != "deleted" {
		t.Errorf("why -o json: %v\n%s", err, out)
	}
	known = nil
	if out, err := try(t, "why", "pod", "web-1", "--data-dir", dir); !errors.Is(err, errSilent) ||
		!strings.Contains(strings.Join(strings.Fields(out), " "), "the journal knows nothing of Pod default/web-1") {
		t.Errorf("nothing is known: %q, %v", out, err)
	}
	if _, err := try(t, "why", "pod", "web-1", "--data-dir", t.TempDir()); err == nil {
		t.Error("without a cluster and its journal there is an answer")
	}
}

// TestWhyService: what the proxy programs comes first, then the journal; a proxy
// that does not answer is said, with what to do, and fails only if no one knows.
func TestWhyService(t *testing.T) {
	lines := []proxy.Line{{Text: "10.96.0.1:443 goes to 10.0.0.1:6443", Kernel: "row there"}}
	record := journal.Record{Time: began, Part: "proxy", Object: journal.Ref{Kind: "Service", Namespace: "default", Name: "web"},
		Decision: "programmed"}
	both := running(t, answers{"/status": healthy(t), "/proxy/service": lines, "/journal": []journal.Record{record}})
	out, err := try(t, "why", "svc", "web", "--data-dir", both)
	if err != nil || !strings.Contains(out, "kernel: row there") || !strings.Contains(out, "programmed") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = try(t, "why", "svc", "web", "-o", "json", "--data-dir", both)
	var back struct {
		Proxy     []proxy.Line
		Decisions []journal.Record
	}
	if err != nil || json.Unmarshal([]byte(out), &back) != nil || len(back.Proxy) != 1 || len(back.Decisions) != 1 {
		t.Errorf("%v\n%s", err, out)
	}
	proxyDown := running(t, answers{"/proxy/service": errors.New("the service proxy does not run (yet)"),
		"/journal": []journal.Record{record}})
	out, err = try(t, "why", "svc", "web", "--data-dir", proxyDown)
	for _, want := range []string{"no service proxy answers", "does not run (yet)", "the API does not answer either", "--kubeconfig",
		"programmed"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("without a proxy: no %q, %v\n%s", want, err, out)
		}
	}
	unknown := running(t, answers{"/proxy/service": errors.New("does not run"), "/journal": []journal.Record{}})
	if out, err := try(t, "why", "svc", "web", "--data-dir", unknown); !errors.Is(err, errSilent) ||
		!strings.Contains(out, "Service default/web") || !strings.Contains(out, "--socket") {
		t.Errorf("no one knows: %v\n%s", err, out)
	}
}

// TestTrace: the way of a packet as text and as JSON; the proxy's own refusal
// reaches the user, and a bad packet is refused before anyone is asked.
func TestTrace(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "p.sock")
	var asked string
	fault := error(nil)
	serve(t, socket, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.RequestURI()
		a := answers{"/proxy/trace": []proxy.Line{{Text: "Service web", Kernel: "as it should be"}, {Text: "to 10.0.0.1:80"}}}
		if fault != nil {
			a["/proxy/trace"] = fault
		}
		a.ServeHTTP(w, r)
	}))
	out, err := try(t, "proxy", "trace", "10.0.0.9", "10.96.0.10", "53/udp", "--socket", socket)
	if err != nil || out != "Service web     kernel: as it should be\nto 10.0.0.1:80  \n" ||
		asked != "/proxy/trace?dst=10.96.0.10&port=53%2Fudp&src=10.0.0.9" {
		t.Errorf("%v, asked %s\n%q", err, asked, out)
	}
	out, err = try(t, "proxy", "trace", "10.0.0.9", "10.96.0.10", "53/udp", "--socket", socket, "-o", "json")
	if err != nil || out != `[{"text":"Service web","kernel":"as it should be"},{"text":"to 10.0.0.1:80"}]`+"\n" {
		t.Errorf("%v\n%s", err, out)
	}
	asked = ""
	for args, want := range map[string]string{"here 10.96.0.10 53": `"here"`, "10.0.0.9 there 53": `"there"`,
		"10.0.0.9 10.96.0.10 http":    `"http"`,
		"10.0.0.9 10.96.0.10 53/icmp": "icmp", "10.0.0.9 10.96.0.10 53 -o yaml": "text and json"} {
		if _, err := try(t, append([]string{"proxy", "trace", "--socket", socket}, strings.Fields(args)...)...); err == nil ||
			!strings.Contains(err.Error(), want) || asked != "" {
			t.Errorf("proxy trace %s: %v, asked %q", args, err, asked)
		}
	}
	fault = errors.New("10.0.0.9 is no pod of this node")
	if _, err := try(t, "proxy", "trace", "10.0.0.9", "10.96.0.10", "53", "--socket", socket); err == nil ||
		!strings.Contains(err.Error(), fault.Error()) || !strings.Contains(err.Error(), socket) {
		t.Errorf("the proxy refuses: %v", err)
	}
	if _, err := try(t, "proxy", "trace", "10.0.0.9", "10.96.0.10", "53", "--socket", socket+".none"); err == nil ||
		!strings.Contains(err.Error(), socket+".none") {
		t.Errorf("no proxy: %v", err)
	}
	dir := running(t, nil)
	for given, want := range map[string]string{"/s": "/s", "": cluster.ControlSocket(dir)} {
		if got := proxySocket(dir, given); got != want {
			t.Errorf("--socket=%s asks on %s, want %s", given, got, want)
		}
	}
	if got := proxySocket(t.TempDir(), ""); !strings.HasPrefix(got, "/run/") {
		t.Errorf("without a cluster it asks on %s", got)
	}
}

// TestSecretsRotate says under which keys the objects are, and what failed.
func TestSecretsRotate(t *testing.T) {
	for _, c := range []struct {
		done        cluster.Rotation
		want, fault string
	}{
		{cluster.Rotation{Objects: 3, File: "/d/pki/encryption.yaml", NewKey: true},
			"3 objects are encrypted with a new key in /d/pki/encryption.yaml\n", ""},
		{cluster.Rotation{Objects: 1, File: "/etc/keys.yaml"}, "1 objects are encrypted with the first key of /etc/keys.yaml\n", ""},
		{cluster.Rotation{Objects: 2, Error: "the disk is full"}, "", "after 2 objects: the disk is full"},
	} {
		out, err := try(t, "secrets", "rotate", "--data-dir", running(t, answers{"/secrets/rotate": c.done}))
		if out != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%+v: %q, %v", c.done, out, err)
		}
	}
}

// apiServer holds Secrets in memory, and gives dataDir an administrator's
// kubeconfig that leads to it.
func apiServer(t *testing.T, dataDir string) (secrets map[string]*v1.Secret) {
	t.Helper()
	secrets = map[string]*v1.Secret{}
	answer := func(w http.ResponseWriter, code int, obj any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(obj); err != nil {
			t.Error(err)
		}
	}
	const path = "/api/v1/namespaces/kube-system/secrets"
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		s := &v1.Secret{}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, s)
		}
		if err != nil {
			t.Errorf("no Secret: %s, %v", body, err)
		}
		s.Data = map[string][]byte{}
		for k, v := range s.StringData {
			s.Data[k] = []byte(v)
		}
		secrets[s.Name] = s
		answer(w, http.StatusCreated, s)
	})
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("fieldSelector") != "type=bootstrap.kubernetes.io/token" {
			t.Errorf("all Secrets are read: %s", r.URL)
		}
		list := v1.SecretList{TypeMeta: metav1.TypeMeta{Kind: "SecretList", APIVersion: "v1"}}
		for _, s := range secrets {
			list.Items = append(list.Items, *s)
		}
		answer(w, http.StatusOK, list)
	})
	mux.HandleFunc("DELETE "+path+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		if secrets[r.PathValue("name")] == nil {
			answer(w, http.StatusNotFound, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
				Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
			return
		}
		delete(secrets, r.PathValue("name"))
		answer(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success"})
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '" + srv.URL + "'}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(filepath.Join(dataDir, "admin.kubeconfig"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return secrets
}

// TestTokenCommands: create prints the line that joins, list shows no secret
// half, delete revokes.
func TestTokenCommands(t *testing.T) {
	dir := running(t, answers{"/status": healthy(t)})
	secrets := apiServer(t, dir)
	if _, err := try(t, "token", "create", "--data-dir", dir); err == nil || !strings.Contains(err.Error(), "ca.crt") || len(secrets) != 0 {
		t.Errorf("without a CA: %v, %d tokens", err, len(secrets))
	}
	writeCA(t, dir)
	for args, server := range map[string]string{"": "https://192.0.2.2:6443",
		"--server https://api.example.com": "https://api.example.com"} {
		out, err := try(t, append([]string{"token", "create", "--data-dir", dir, "--description", "rack"}, strings.Fields(args)...)...)
		words := strings.Fields(out)
		if err != nil || len(words) != 7 || words[2] != server || !strings.HasPrefix(words[6], "sha256:") {
			t.Fatalf("token create %s: %q, %v", args, out, err)
		}
		id, secret, _ := strings.Cut(words[4], ".")
		if s := secrets["bootstrap-token-"+id]; s == nil || string(s.Data["token-secret"]) != secret {
			t.Errorf("the token of %q is not in the API", out)
		}
		list, err := try(t, "token", "list", "--data-dir", dir)
		if err != nil || !strings.Contains(list, id) || !strings.Contains(list, "rack") || strings.Contains(list, secret) {
			t.Errorf("token list: %v\n%s", err, list)
		}
		if _, err := try(t, "token", "delete", id, "--data-dir", dir); err != nil || len(secrets) != 0 {
			t.Errorf("token delete: %v, %d left", err, len(secrets))
		}
		if _, err := try(t, "token", "delete", id, "--data-dir", dir); err == nil || !strings.Contains(err.Error(), "berth token list") {
			t.Errorf("deleted twice: %v", err)
		}
	}
	out, err := try(t, "token", "create", "--data-dir", dir, "--ttl", "0")
	if err != nil || !strings.Contains(out, "warning: with --ttl 0") {
		t.Errorf("an endless token: %q, %v", out, err)
	}
	if list, err := try(t, "token", "list", "--data-dir", dir); err != nil || !strings.Contains(list, "never") {
		t.Errorf("token list: %v\n%s", err, list)
	}
}

// TestFollow: the progress of a detached start is shown, other output is not, and
// a failed stage is noticed.
func TestFollow(t *testing.T) {
	for _, failed := range []bool{false, true} {
		var pipe, out bytes.Buffer
		emit := cluster.Encoder(&pipe)
		emit(cluster.Event{Stage: "store", State: "start"})
		pipe.WriteString("panic: not JSON\n")
		emit(cluster.Event{Stage: "store", State: map[bool]string{false: "done", true: "fail"}[failed], Detail: "what it says"})
		if got := follow(&pipe, &out); got != failed || !strings.Contains(out.String(), "what it says") || strings.Contains(out.String(),
			"panic") {
			t.Errorf("failed %v: %v\n%s", failed, got, out.String())
		}
	}
}
