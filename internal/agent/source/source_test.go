package source

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
)

var quiet = slog.New(slog.DiscardHandler)

const patience = 30 * time.Second

// ear is a sink that keeps the news.
type ear struct {
	mu      sync.Mutex
	pods    map[types.UID]*v1.Pod
	mirrors map[types.UID]*v1.Pod
	ready   int
	news    chan struct{}
}

func newEar() *ear {
	return &ear{pods: map[types.UID]*v1.Pod{}, mirrors: map[types.UID]*v1.Pod{}, news: make(chan struct{}, 1000)}
}

func (e *ear) do(f func()) {
	e.mu.Lock()
	f()
	e.mu.Unlock()
	e.news <- struct{}{}
}
func (e *ear) Set(p *v1.Pod, _ bool)              { e.do(func() { e.pods[p.UID] = p }) }
func (e *ear) Remove(uid types.UID)               { e.do(func() { delete(e.pods, uid) }) }
func (e *ear) SetMirror(uid types.UID, m *v1.Pod) { e.do(func() { e.mirrors[uid] = m }) }
func (e *ear) SourcesReady()                      { e.do(func() { e.ready++ }) }

// until waits for the news that make ok true.
func (e *ear) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for {
		e.mu.Lock()
		yes := ok()
		e.mu.Unlock()
		if yes {
			return
		}
		select {
		case <-e.news:
		case <-time.After(patience):
			t.Fatalf("there is no news of %s: %v", what, e.pods)
		}
	}
}

func (e *ear) named(name string) *v1.Pod {
	for _, p := range e.pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func start(t *testing.T, cfg Config) *ear {
	t.Helper()
	e := newEar()
	cfg.Sink, cfg.Log = e, quiet
	if cfg.NodeName == "" {
		cfg.NodeName = "Node1"
	}
	if cfg.Node == nil {
		cfg.Node = func() types.UID { return "node-uid" }
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		<-done
		goleak.VerifyNone(t, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
	})
	return e
}

const podText = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec: {containers: [{name: app, image: "%s", resources: {limits: {cpu: 1}}}]}
`

func write(t *testing.T, path, name, image string) {
	t.Helper()
	tmp := filepath.Join(filepath.Dir(path), ".new")
	if err := os.WriteFile(tmp, fmt.Appendf(nil, podText, name, image), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		t.Fatal(err)
	}
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.yaml", "a", "one:1")
	write(t, dir+"/.hidden", "h", "one:1")
	if err := os.WriteFile(dir+"/broken", []byte("kind: Pod\napiVersion: v1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	e := start(t, Config{Path: dir, PathPeriod: time.Hour})
	e.until(t, "the first pod", func() bool { return e.ready == 1 && e.named("a-node1") != nil })
	p := e.named("a-node1")
	if len(e.pods) != 1 || p.Namespace != "default" || p.Spec.NodeName != "Node1" || p.Spec.RestartPolicy != v1.RestartPolicyAlways ||
		p.Spec.Containers[0].Resources.Requests.Cpu().String() != "1" || p.Annotations[AnnotationSource] != "file" ||
		p.Annotations[AnnotationHash] != string(p.UID) ||
		p.Spec.Tolerations[0].Effect != v1.TaintEffectNoExecute {
		t.Errorf("the pod is not completed: %+v", p)
	}
	write(t, dir+"/b.yaml", "b", "one:1")
	e.until(t, "a second pod", func() bool { return e.named("b-node1") != nil })
	write(t, dir+"/a.yaml", "a", "two:1")
	e.until(t, "a change", func() bool { n := e.named("a-node1"); return n != nil && n.UID != p.UID && len(e.pods) == 2 })
	if err := os.WriteFile(dir+"/b.yaml", []byte("no yaml: ["), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/c.yaml", "c", "one:1")
	e.until(t, "a third pod", func() bool { return e.named("c-node1") != nil })
	if e.named("b-node1") == nil {
		t.Error("a manifest that broke ended its pod")
	}
	if err := os.Remove(dir + "/a.yaml"); err != nil {
		t.Fatal(err)
	}
	e.until(t, "a removal", func() bool { return e.named("a-node1") == nil })
}

func TestMissingPathIsEmpty(t *testing.T) {
	e := start(t, Config{Path: t.TempDir() + "/not/there", PathPeriod: time.Hour})
	e.until(t, "readiness", func() bool { return e.ready == 1 })
}

func TestURL(t *testing.T) {
	var asked, second atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Token") != "t" {
			w.WriteHeader(403)
			return
		}
		asked.Add(1)
		image := "one:1"
		if second.Load() > 0 {
			image = "two:1"
		}
		fmt.Fprintf(w, podText, "u", image)
	}))
	defer srv.Close()
	e := start(t, Config{URL: srv.URL, Header: http.Header{"X-Token": {"t"}}, URLPeriod: 10 * time.Millisecond})
	e.until(t, "the pod", func() bool { return e.named("u-node1") != nil })
	first := e.named("u-node1")
	if len(first.Spec.Tolerations) != 0 {
		t.Error("pods of a URL get no toleration")
	}
	second.Store(1)
	e.until(t, "the change", func() bool { p := e.named("u-node1"); return p != nil && p.UID != first.UID })
}

func TestMirror(t *testing.T) {
	dir := t.TempDir()
	api := fake.NewClientset(
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "plain", Namespace: "default", UID: "p"}, Spec: v1.PodSpec{NodeName: "Node1"}},
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "default", UID: "o"}, Spec: v1.PodSpec{NodeName: "another"}},
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stale-node1", Namespace: "default", UID: "s",
			Annotations: map[string]string{AnnotationMirror: "x"}}, Spec: v1.PodSpec{NodeName: "Node1"}},
	)
	write(t, dir+"/a.yaml", "a", "one:1")
	e := start(t, Config{Client: api, Path: dir, PathPeriod: time.Hour})
	e.until(t, "the mirror", func() bool { p := e.named("a-node1"); return p != nil && e.mirrors[p.UID] != nil })
	e.mu.Lock()
	m, static := e.mirrors[e.named("a-node1").UID], e.named("a-node1")
	if e.pods["p"] == nil || e.pods["o"] != nil || e.pods["s"] != nil {
		t.Errorf("the API's pods are %v", e.pods)
	}
	e.mu.Unlock()
	if m.Annotations[AnnotationMirror] != string(static.UID) || m.OwnerReferences[0].UID != "node-uid" {
		t.Errorf("the mirror is %+v", m.ObjectMeta)
	}
	left := func(name string) bool {
		_, err := api.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	}
	w, err := api.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for left("stale-node1") {
		<-w.ResultChan()
	}
	if err := os.Remove(dir + "/a.yaml"); err != nil {
		t.Fatal(err)
	}
	for left("a-node1") {
		<-w.ResultChan()
	}
}

func TestRefused(t *testing.T) {
	for _, tc := range []struct{ spec, want string }{
		{`{containers: []}`, "at least one is required"},
		{`{containers: [{name: a}]}`, `image of container "a" is required`},
		{`{containers: [{name: a, image: i}, {name: a, image: i}]}`, "there twice"},
		{`{containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /v}]}]}`, `mounts volume "v"`},
		{`{containers: [{name: a, image: i}], volumes: [{name: v, secret: {secretName: s}}]}`, "static pods may not reference secrets"},
		{`{containers: [{name: a, image: i}], volumes: [{name: v, projected: {sources: [{configMap: {name: c}}]}}]}`,
			"static pods may not reference configmaps"},
		{`{containers: [{name: a, image: i, env: [{name: E, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]}`,
			"static pods may not reference secrets"},
		{`{containers: [{name: a, image: i}], volumes: [{name: v, projected: {sources: [{podCertificate: {signerName: a.b/c, keyType: ` +
			`ED25519, keyPath: k}}]}}]}`, "static pods may not reference podcertificates"},
		{`{containers: [{name: a, image: i}], volumes: [{name: v, csi: {driver: d.example}}]}`,
			"static pods may not reference csidrivers (volume v)"},
		{`{containers: [{name: a, image: i}], volumes: [{name: v, glusterfs: {endpoints: e, path: p}}]}`,
			"static pods may not reference endpoints"},
		{`{containers: [{name: a, image: i}], volumes: [{name: v, projected: {sources: [{clusterTrustBundle: {name: b, path: p}}]}}]}`,
			"static pods may not reference clustertrustbundles"},
		{`{containers: [{name: a, image: i}], volumes: [{name: v, cephfs: {monitors: [m], secretRef: {name: s}}}]}`,
			"static pods may not reference secrets"},
		{`{serviceAccountName: sa, containers: [{name: a, image: i}]}`, "static pods may not reference serviceaccounts"},
		{`{containers: [{name: A_, image: i}]}`, `name of container "A_"`},
	} {
		_, err := parse([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: "+tc.spec), &origin{node: "n", kind: "file",
			place: "f"}, false)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.spec, err, tc.want)
		}
	}
	good := "{containers: [{name: a, image: i}], volumes: [{name: h, hostPath: {path: /run}}, {name: e, emptyDir: {}}, " +
		"{name: d, projected: {sources: [{downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}}]}"
	if _, err := parse([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: "+good), &origin{node: "n", kind: "file", place: "f"},
		false); err != nil {
		t.Errorf("a static pod that needs no API object: %v", err)
	}
	if _, err := parse([]byte("apiVersion: apps/v1\nkind: Deployment\n"), &origin{node: "n", kind: "file", place: "f"}, false); err == nil {
		t.Error("a Deployment is taken for a Pod")
	}
}

func TestNextMirrorStep(t *testing.T) {
	pod := func(hash, mirror string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationHash: hash, AnnotationMirror: mirror}}}
	}
	ending := pod("", "1")
	now := metav1.Now()
	ending.DeletionTimestamp = &now
	for i, tc := range []struct {
		static, mirror *v1.Pod
		complete       bool
		want           mirrorStep
	}{
		{nil, nil, true, MirrorKeep},
		{nil, pod("", "1"), false, MirrorKeep},
		{nil, pod("", "1"), true, MirrorDelete},
		{pod("1", ""), nil, false, MirrorCreate},
		{pod("1", ""), pod("", "1"), true, MirrorKeep},
		{pod("2", ""), pod("", "1"), true, MirrorDelete},
		{pod("1", ""), ending, true, MirrorDelete},
	} {
		if got := nextMirrorStep(tc.static, tc.mirror, tc.complete); got != tc.want {
			t.Errorf("case %d: %v, want %v", i, got, tc.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(podText, "a", "i")))
	f.Add([]byte("apiVersion: v1\nkind: PodList\nitems: [{metadata: {name: a}, spec: {containers: [{name: a, image: i, env: [{name: E, " +
		"valueFrom: {}}]}]}}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		pods, _ := parse(data, &origin{node: "n", kind: "file", place: "f"}, true)
		for _, p := range pods {
			if p.UID == "" || p.Name == "" || len(p.Spec.Containers) == 0 {
				t.Errorf("an incomplete pod came through: %+v", p)
			}
		}
	})
}

// TestNoPodPassesForStatic: where a pod comes from is not what it says itself.
func TestNoPodPassesForStatic(t *testing.T) {
	liar := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "liar", Namespace: "default", UID: "l",
		Annotations: map[string]string{AnnotationSource: "file"}}, Spec: v1.PodSpec{NodeName: "Node1"}}
	e := start(t, Config{Client: fake.NewClientset(liar)})
	e.until(t, "the pod", func() bool { return e.pods["l"] != nil })
	e.mu.Lock()
	defer e.mu.Unlock()
	if got := e.pods["l"].Annotations[AnnotationSource]; got != "api" {
		t.Errorf("it comes from %q", got)
	}
}

// TestMirrorOutlivesItsPod: a mirror stays while its pod still ends, whether the
// manifest went or changed, and goes then.
func TestMirrorOutlivesItsPod(t *testing.T) {
	for name, change := range map[string]func(string) error{
		"removed": os.Remove,
		"changed": func(path string) error {
			return os.WriteFile(path, fmt.Appendf(nil, podText, "a", "two:2"), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, api := t.TempDir(), fake.NewClientset()
			write(t, dir+"/a.yaml", "a", "one:1")
			over, asked := make(chan struct{}), make(chan types.UID, 100)
			var old atomic.Value
			e := start(t, Config{Client: api, Path: dir, PathPeriod: time.Hour, Ending: func(uid types.UID) <-chan struct{} {
				if uid != old.Load() {
					return nil
				}
				asked <- uid
				return over
			}})
			e.until(t, "the mirror", func() bool { p := e.named("a-node1"); return p != nil && e.mirrors[p.UID] != nil })
			w, err := api.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			e.mu.Lock()
			old.Store(e.named("a-node1").UID)
			e.mu.Unlock()
			if err := change(dir + "/a.yaml"); err != nil {
				t.Fatal(err)
			}
			<-asked
			m, err := api.CoreV1().Pods("default").Get(t.Context(), "a-node1", metav1.GetOptions{})
			if err != nil || types.UID(m.Annotations[AnnotationMirror]) != old.Load() {
				t.Errorf("while the pod ends the mirror is %v, %v", m, err)
			}
			close(over)
			for ev := range w.ResultChan() {
				if ev.Type == watch.Deleted {
					break
				}
			}
		})
	}
}
