package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/ui/view"
)

// allowed are rights by user: "list RESOURCE NAMESPACE" and "get PATH"; "*" is all.
type allowed map[string][]string

func (a allowed) Authorize(_ context.Context, at authorizer.Attributes) (authorizer.Decision, string, error) {
	want := "get " + at.GetPath()
	if at.IsResourceRequest() {
		want = strings.TrimRight(at.GetVerb()+" "+at.GetResource()+" "+at.GetNamespace(), " ")
	}
	has := a[at.GetUser().GetName()]
	if slices.Contains(has, "*") || slices.Contains(has, want) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// site is the page of a small cluster in memory.
type site struct {
	t      *testing.T
	url    string
	client *fake.Clientset
	page   *pageHandler
}

var rightsOfAll = allowed{"ada": {"*"}, "dana": {"list pods ops", "list deployments ops"}, "nobody": {}}

func newSite(t *testing.T, objects ...runtime.Object) *site {
	t.Helper()
	old := metav1.NewTime(time.Now().Add(-time.Hour))
	crash := v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Name: "app", RestartCount: 7,
		State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}}
	objects = append(objects,
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ops"}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host-1", CreationTimestamp: old,
			Labels: map[string]string{v1.LabelTopologyZone: "node-fact"}},
			Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: old}}}},
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "shop-pod", CreationTimestamp: old},
			Spec:   v1.PodSpec{NodeName: "host-1"},
			Status: crash},
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "ops-pod", CreationTimestamp: old},
			Spec:   v1.PodSpec{NodeName: "host-1"},
			Status: crash},
		&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "shop-service"}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "shop-deploy"}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "ops-deploy"}},
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "hidden"}, Data: map[string][]byte{"key": []byte("never-shown")}},
	)
	s := &site{t: t, client: fake.NewClientset(objects...)}
	life, stop := context.WithCancel(t.Context())
	s.page = New(Config{Informers: informers.NewSharedInformerFactory(s.client, 0), Authorizer: rightsOfAll, Life: life,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Records: func(ref journal.Ref) []journal.Record {
			return []journal.Record{{Part: "scheduler", Object: ref, Decision: "decided-something", Because: []journal.Fact{
				{Name: "beside", Value: "shop-pod on host-1"}}}}
		}, Parts: func() []view.Part { return []view.Part{{Name: "part-of-server"}} }, Outlook: func(string) (journal.Record, bool) {
			return journal.Record{Decision: "is heard and ready"}, true
		}})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := r.Header.Get("Authorization"); name != "" {
			r = r.WithContext(genericapirequest.WithUser(r.Context(), &user.DefaultInfo{Name: name}))
		}
		s.page.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(stop)
	s.url = srv.URL
	return s
}

// do performs a request as a user; the caller closes the body.
func (s *site) do(method, path, as string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if as != "" {
		req.Header.Set("Authorization", as)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

func (s *site) get(path, as string) (int, string) {
	s.t.Helper()
	resp := s.do(http.MethodGet, path, as)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// everyView are the addresses of all views.
var everyView = []string{"", "nodes/host-1", "workloads", "workloads/Deployment/shop/shop-deploy", "workloads/Deployment/ops/ops-deploy",
	"pods", "pods?ns=shop", "pods?ns=ops", "pods?node=host-1", "pods/shop/shop-pod", "pods/ops/ops-pod", "services",
	"services/shop/shop-service", "zones"}

// TestRights: no view shows what the user may not list.
func TestRights(t *testing.T) {
	s := newSite(t)
	secretWords := map[string][]string{
		"ada":    {"never-shown"},
		"dana":   {"never-shown", "shop-", "node-fact", "part-of-server", "decided-something", "is heard and ready"},
		"nobody": {"never-shown", "shop-", "ops-", "node-fact", "part-of-server", "decided-something", "is heard and ready"},
	}
	for as, words := range secretWords {
		for _, path := range everyView {
			code, body := s.get("/ui/"+path, as)
			own := regexp.MustCompile(`data-view="[^"]*"|<code>[^<]*</code>|value="[^"]*"`).ReplaceAllString(body, "") // what the user sent
			for _, w := range words {
				if strings.Contains(own, w) {
					t.Errorf("%s sees %q in /ui/%s (status %d)", as, w, path, code)
				}
			}
		}
	}
	for as, views := range map[string]map[string]string{
		"ada": {"": "host-1", "nodes/host-1": "shop-pod", "pods/shop/shop-pod": "decided-something", "services": "shop-service",
			"workloads": "ops-deploy", "zones": "Who is next", "pods": "ops-pod"},
		"dana":   {"": "ops-pod", "pods": "ops-pod", "pods/ops/ops-pod": "CrashLoopBackOff", "workloads": "ops-deploy"},
		"nobody": {"": "may list neither nodes nor pods"},
	} {
		for path, word := range views {
			if _, body := s.get("/ui/"+path, as); !strings.Contains(body, word) {
				t.Errorf("%s does not see %q in /ui/%s", as, word, path)
			}
		}
	}
}

// TestRefusals: who nobody knows gets nothing, and nothing can be sent.
func TestRefusals(t *testing.T) {
	s := newSite(t)
	for _, as := range []string{"", user.Anonymous} {
		for _, path := range append(slices.Clone(everyView), "live?view=", "assets/ui.js") {
			if code, body := s.get("/ui/"+path, as); code != http.StatusUnauthorized || strings.Contains(body, "host-1") {
				t.Errorf("%q gets /ui/%s with status %d", as, path, code)
			}
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		resp := s.do(method, "/ui/pods", "ada")
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s answers %s", method, resp.Status)
		}
	}
	for _, path := range []string{"nothing", "pods/shop", "secrets/shop/hidden", "workloads/Secret/shop/hidden", "assets/../ui.go",
		"pods//x"} {
		if code, body := s.get("/ui/"+path, "ada"); code != http.StatusNotFound || strings.Contains(body, "never-shown") {
			t.Errorf("/ui/%s has status %d", path, code)
		}
	}
	if code, _ := s.get("/ui/pods/shop/no-such", "ada"); code != http.StatusNotFound {
		t.Errorf("a pod that does not exist has status %d", code)
	}
}

// TestHeaders: the page loads nothing from elsewhere and nobody may frame it.
func TestHeaders(t *testing.T) {
	s := newSite(t)
	outside := regexp.MustCompile(`(?i)(src|href|action)\s*=\s*["']?(https?:)?//|<script>|<style|\son[a-z]+=|style=`)
	for _, path := range everyView {
		resp := s.do(http.MethodGet, "/ui/"+path, "ada")
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		csp := resp.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'",
			"base-uri 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("/ui/%s: the policy lacks %s: %s", path, want, csp)
			}
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
			t.Errorf("/ui/%s: the policy is loose: %s", path, csp)
		}
		if found := outside.FindString(string(body)); found != "" {
			t.Errorf("/ui/%s has %q", path, found)
		}
		if resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("/ui/%s: headers %v", path, resp.Header)
		}
	}
}

// TestForeignWords: what others wrote is text and not markup.
func TestForeignWords(t *testing.T) {
	evil := `<script>alert(1)</script>" onload="x`
	s := newSite(t, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "evil"}, Status: v1.PodStatus{Phase: v1.PodFailed,
		Reason: evil, Message: evil}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "evil", Labels: map[string]string{v1.LabelTopologyZone: evil}},
			Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse, Message: evil}}}})
	for _, path := range []string{"", "pods", "pods/shop/evil", "nodes/evil", "zones", "?q=" + url.QueryEscape(evil), "pods?ns=" +
		url.QueryEscape(evil)} {
		if _, body := s.get("/ui/"+path, "ada"); strings.Contains(body, "<script>") || strings.Contains(body, `" onload="`) {
			t.Errorf("/ui/%s holds markup of others", path)
		}
	}
}

// events reads a stream.
type events struct {
	resp *http.Response
	in   *bufio.Reader
	t    *testing.T
}

func (s *site) stream(path, as string) *events {
	s.t.Helper()
	resp := s.do(http.MethodGet, "/ui/live?view="+url.QueryEscape(path), as)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		s.t.Fatalf("the stream answers %s %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	return &events{resp, bufio.NewReader(resp.Body), s.t}
}

// next is the next view of the stream.
func (e *events) next() string {
	e.t.Helper()
	name := ""
	for {
		line, err := e.in.ReadString('\n')
		if err != nil {
			e.t.Fatalf("reading the stream: %v", err)
		}
		if n, ok := strings.CutPrefix(line, "event: "); ok {
			name = strings.TrimSpace(n)
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || name != "view" {
			continue
		}
		var v struct{ Main string }
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			e.t.Fatal(err)
		}
		return v.Main
	}
}

// TestStream: an open page gets what changes, and what the user may not list not
// even then. Without open pages nothing listens.
func TestStream(t *testing.T) {
	s := newSite(t)
	admin, dana := s.stream("pods", "ada"), s.stream("pods", "dana")
	if first := admin.next(); !strings.Contains(first, "shop-pod") {
		t.Errorf("the first view is %s", first)
	}
	if first := dana.next(); strings.Contains(first, "shop-pod") || !strings.Contains(first, "ops-pod") {
		t.Errorf("the first view is %s", first)
	}
	for _, ns := range []string{"shop", "ops"} {
		if _, err := s.client.CoreV1().Pods(ns).Create(t.Context(),
			&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: ns + "-late"}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for seen := ""; !strings.Contains(seen, "ops-late") || !strings.Contains(seen, "shop-late"); {
		seen = admin.next()
	}
	for seen := ""; !strings.Contains(seen, "ops-late"); {
		if seen = dana.next(); strings.Contains(seen, "shop-late") {
			t.Errorf("a stream shows what its user may not list: %s", seen)
		}
	}
	s.page.hub.mu.Lock()
	listening := len(s.page.hub.stop)
	s.page.hub.mu.Unlock()
	if listening == 0 {
		t.Error("nothing listens though pages are open")
	}
}

// TestNobodyLooks: the last page that closes ends the listening.
func TestNobodyLooks(t *testing.T) {
	s := newSite(t)
	if err := s.page.source.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := s.page.hub
	a, b := &viewer{user: "a"}, &viewer{user: "a"}
	for _, v := range []*viewer{a, b} {
		if err := h.join(s.page.source, v); err != nil {
			t.Fatal(err)
		}
	}
	h.leave(a)
	if len(h.stop) == 0 {
		t.Error("the listening ended though a page is open")
	}
	h.leave(b)
	if len(h.stop) != 0 || len(h.viewers) != 0 {
		t.Error("something listens for nobody")
	}
	for range maxUserStreams {
		if err := h.join(s.page.source, &viewer{user: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.join(s.page.source, &viewer{user: "a"}); err == nil {
		t.Error("a user may open any number of pages")
	}
	if err := h.join(s.page.source, &viewer{user: "b"}); err != nil {
		t.Errorf("another user may not open one: %v", err)
	}
}

func TestThresholds(t *testing.T) {
	got := thresholdsOf([]byte(`{"kubeletconfig":{"evictionHard":{"memory.available":"100Mi"},"evictionSoft":{"nodefs.available":"15%"},` +
		`"evictionSoftGracePeriod":{"nodefs.available":"2m"}}}`))
	want := []journal.Fact{{Name: "memory.available", Value: "evicts below 100Mi"},
		{Name: "nodefs.available", Value: "evicts below 15% for 2m"}}
	if !slices.Equal(got, want) {
		t.Errorf("thresholds %v", got)
	}
}

// TestAgesDoNotCount: two renderings that differ in ages alone are one.
func TestAgesDoNotCount(t *testing.T) {
	at := time.Now()
	page := func(now time.Time, name string, heard time.Time) []byte {
		return []byte(name + string(ageHTML(now, at, "")) + string(ageHTML(now, heard, "host-1")))
	}
	if sumOf(page(at, "a", at)) != sumOf(page(at.Add(time.Minute), "a", at.Add(time.Second))) {
		t.Error("an age counts as a change")
	}
	if sumOf(page(at, "a", at)) == sumOf(page(at, "b", at)) {
		t.Error("a change does not count")
	}
}
