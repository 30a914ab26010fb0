package source

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/runtime/fake"
)

// What kubelet 1.36.2 had made of this manifest: see testdata.
const (
	webUID  = "e7859e62d1d4b6673602241cdb551928"
	webText = `apiVersion: v1
kind: Pod
metadata: {name: static-web, namespace: kube-system}
spec: {containers: [{name: c, image: "registry.k8s.io/pause:3.10.2"}]}
`
)

// madeAt is when the kubelet made the static pods' sandboxes.
var madeAt = time.Date(2026, 11, 22, 16, 31, 57, 0, time.UTC)

type staticNode struct {
	manifests, state string
	rt               *fake.Runtime
}

func newStaticNode(t *testing.T) *staticNode {
	t.Helper()
	n := &staticNode{manifests: t.TempDir(), state: t.TempDir() + "/static_pods_state", rt: fake.New(nil)}
	text, err := os.ReadFile("testdata/kubelet-1.36.2.json")
	if err == nil {
		err = n.rt.Load(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// manifest writes a file as it was changed last.
func (n *staticNode) manifest(t *testing.T, name, text string, changed time.Time) {
	t.Helper()
	path := n.manifests + "/" + name
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, changed, changed); err != nil {
		t.Fatal(err)
	}
}

// uid is the UID under which an agent that starts now runs the pod.
func (n *staticNode) uid(t *testing.T, name string) types.UID {
	t.Helper()
	s := &set{cfg: Config{NodeName: "lab-n1", Path: n.manifests, Now: time.Now, Log: quiet}}
	var err error
	if s.ids, err = openIdentities(n.state); err != nil {
		t.Error(err)
	}
	if err := s.ids.meet(t.Context(), n.rt); err != nil {
		t.Fatal(err)
	}
	pods, err := s.readFiles(map[string]*manifest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if p.Name == name {
			if p.Annotations[AnnotationHash] != string(p.UID) {
				t.Errorf("the pod %s says that its hash is %s", p.UID, p.Annotations[AnnotationHash])
			}
			return p.UID
		}
	}
	t.Fatalf("there is no pod %s", name)
	return ""
}

func TestStaticPodKeepsTheUIDOfAKubelet(t *testing.T) {
	n := newStaticNode(t)
	n.manifest(t, "web.yaml", webText, madeAt)
	if uid := n.uid(t, "static-web-lab-n1"); uid != webUID {
		t.Fatalf("the static pod that runs as %s is taken for %s", webUID, uid)
	}
	n.rt = fake.New(nil) // all of it is gone, as after a boot
	n.manifest(t, "web.yaml", "# a comment\n"+strings.Replace(webText, "{name: static-web, namespace: kube-system}",
		"{namespace: kube-system, name: static-web}", 1), time.Now())
	if uid := n.uid(t, "static-web-lab-n1"); uid != webUID {
		t.Errorf("the manifest says what it said, but the pod is %s", uid)
	}
	n.manifest(t, "web.yaml", strings.Replace(webText, "3.10.2", "3.11", 1), time.Now())
	changed := n.uid(t, "static-web-lab-n1")
	if changed == webUID {
		t.Error("a manifest with another image kept the UID of the pod before it")
	}
	if again := n.uid(t, "static-web-lab-n1"); again != changed {
		t.Errorf("the same manifest is %s at one start and %s at the next", changed, again)
	}
}

// A manifest that is not the one from which the sandbox was made is a new pod.
func TestStaticPodIsNotAdoptedFromAnotherManifest(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, n *staticNode){
		"changed later": func(t *testing.T, n *staticNode) { n.manifest(t, "web.yaml", webText, madeAt.Add(time.Hour)) },
		"another image": func(t *testing.T, n *staticNode) {
			n.manifest(t, "web.yaml", strings.Replace(webText, "3.10.2", "3.9", 1), madeAt)
		},
		"another label": func(t *testing.T, n *staticNode) {
			n.manifest(t, "web.yaml", strings.Replace(webText, "kube-system}", "kube-system, labels: {a: b}}", 1), madeAt)
		},
		"another note": func(t *testing.T, n *staticNode) {
			n.manifest(t, "web.yaml", strings.Replace(webText, "kube-system}", "kube-system, annotations: {a: b}}", 1), madeAt)
		},
		"fewer": func(t *testing.T, n *staticNode) {
			n.manifest(t, "web.yaml", strings.Replace(webText, "name: c,", "name: d,", 1), madeAt)
		},
		"of another file": func(t *testing.T, n *staticNode) {
			n.manifest(t, "first.yaml", webText, madeAt)
			n.uid(t, "static-web-lab-n1")
			if err := os.Rename(n.manifests+"/first.yaml", n.manifests+"/web.yaml"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newStaticNode(t)
			change(t, n)
			if uid := n.uid(t, "static-web-lab-n1"); uid == webUID || uid == "" {
				t.Errorf("the pod has the UID %q", uid)
			}
		})
	}
}

// The kubelet runs the node again for a while, under a UID of its own.
func TestStaticPodFollowsTheAgentThatRanItLast(t *testing.T) {
	n := newStaticNode(t)
	kubelet := n.rt
	n.rt = fake.New(nil)
	n.manifest(t, "web.yaml", webText, madeAt)
	own := n.uid(t, "static-web-lab-n1")
	if own == webUID {
		t.Fatal("a pod that runs nowhere was adopted")
	}
	n.rt = kubelet
	if uid := n.uid(t, "static-web-lab-n1"); uid != webUID {
		t.Errorf("the pod runs as %s and is taken for %s", webUID, uid)
	}
}

func TestOwnUIDOfAManifestStays(t *testing.T) {
	n := newStaticNode(t)
	n.manifest(t, "uid.yaml", strings.Replace(webText, "name: static-web,", "name: static-web, uid: 11111111-2222-3333-4444-555555555555,",
		1), madeAt)
	if uid := n.uid(t, "static-web-lab-n1"); uid != "11111111-2222-3333-4444-555555555555" {
		t.Errorf("the manifest's own UID became %s", uid)
	}
}

// A broken record is as good as none.
func TestBrokenIdentitiesAreReadFromTheRuntime(t *testing.T) {
	n := newStaticNode(t)
	n.manifest(t, "web.yaml", webText, madeAt)
	if err := os.WriteFile(n.state, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openIdentities(n.state); err == nil {
		t.Error("nothing is said of the broken file")
	}
	e := start(t, Config{NodeName: "lab-n1", Path: n.manifests, PathPeriod: time.Hour, StatePath: n.state, Runtime: n.rt})
	e.until(t, "the pod", func() bool { return e.ready == 1 && e.pods[webUID] != nil })
	if again, err := openIdentities(n.state); err != nil || again.byKey["file:"+n.manifests+"/web.yaml"].UID != webUID {
		t.Errorf("the record was not written anew: %v", err)
	}
}

// No pod is given a UID before the runtime has told which it runs under.
func TestStaticPodsWaitForTheRuntime(t *testing.T) {
	n := newStaticNode(t)
	n.manifest(t, "web.yaml", webText, madeAt)
	var asked atomic.Int32
	n.rt.Before = func(context.Context, string, string) error {
		if asked.Add(1) < 3 {
			return errors.New("not yet")
		}
		return nil
	}
	e := start(t, Config{NodeName: "lab-n1", Path: n.manifests, PathPeriod: time.Hour, StatePath: n.state, Runtime: n.rt})
	e.until(t, "the pod", func() bool { return e.ready == 1 && len(e.pods) > 0 })
	if p := e.named("static-web-lab-n1"); p == nil || p.UID != webUID || len(e.pods) != 1 {
		t.Errorf("a runtime that was slow cost the pod its UID: %v", e.pods)
	}
}
