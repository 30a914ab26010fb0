package ui

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/systeminfo"
	"github.com/chromedp/chromedp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/ui"
	"github.com/berth-dev/berth/test/e2e/kit"
)

// everything allows everything.
type everything struct{}

func (everything) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

// bigCluster serves the page of a cluster that is only in memory.
func bigCluster(t *testing.T, nodes, pods int) *rest.Config {
	t.Helper()
	now := metav1.Now()
	nodeList, podList := &v1.NodeList{}, &v1.PodList{}
	room := v1.ResourceList{v1.ResourceCPU: resource.MustParse("16"), v1.ResourceMemory: resource.MustParse("64Gi"),
		v1.ResourcePods: resource.MustParse("110")}
	for i := range nodes {
		status := v1.ConditionTrue
		if i%500 == 7 {
			status = v1.ConditionUnknown
		}
		nodeList.Items = append(nodeList.Items, v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%05d", i),
			Labels: map[string]string{v1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%5)}, CreationTimestamp: now},
			Status: v1.NodeStatus{Allocatable: room, Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: status,
				LastHeartbeatTime: now, LastTransitionTime: now}}}})
	}
	for i := range pods {
		p := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team-%d", i%40), Name: fmt.Sprintf("pod-%06d", i),
			CreationTimestamp: now}, Spec: v1.PodSpec{NodeName: fmt.Sprintf("node-%05d", i%nodes), Containers: []v1.Container{{Name: "app",
			Image: "reg.example/app:1"}}}, Status: v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady,
			Status: v1.ConditionTrue, LastTransitionTime: now}}}}
		if i%5000 == 9 {
			p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "app", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{
				Reason: "CrashLoopBackOff"}}}}
		}
		podList.Items = append(podList.Items, p)
	}
	client := fake.NewClientset()
	for kind, list := range map[string]runtime.Object{"nodes": nodeList, "pods": podList} {
		client.PrependReactor("list", kind, func(clienttesting.Action) (bool, runtime.Object, error) { return true, list, nil })
	}
	life, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	page := ui.New(ui.Config{Informers: informers.NewSharedInformerFactory(client, 0), Authorizer: everything{}, Life: life,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page.ServeHTTP(w, r.WithContext(genericapirequest.WithUser(r.Context(), &user.DefaultInfo{Name: "ada"})))
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(stop) // before the server waits for its streams
	return &rest.Config{Host: srv.URL}
}

// TestBigCluster opens the page of clusters with 50 and 5,000 nodes, and prints
// when the first content is there and what the tab holds.
func TestBigCluster(t *testing.T) {
	kit.OnlyInAll(t, "needs Chromium, and memory for 100,000 pods")
	for _, size := range []struct{ nodes, pods int }{{50, 1000}, {5000, 100_000}} {
		t.Run(fmt.Sprint(size.nodes), func(t *testing.T) {
			b := browse(t, bigCluster(t, size.nodes, size.pods))
			for _, path := range []string{"", "pods", "nodes/node-00007"} {
				b.open(path)
				b.until(`performance.getEntriesByName("first-contentful-paint").length > 0`)
				paint := eval[float64](b, `performance.getEntriesByName("first-contentful-paint")[0].startTime`)
				server := eval[float64](b, `performance.getEntriesByType("navigation")[0].responseStart`)
				heap := call(b, cdpruntime.GetHeapUsage, cdp.Empty{})
				t.Logf("%5d nodes, %6d pods, /ui/%-16s first content %4.0f ms (server %4.0f ms), heap %.1f MiB, tab %s", size.nodes,
					size.pods,
					path, paint, server, heap.UsedSize/(1<<20), b.tabMemory())
			}
			b.open("")
			b.shows(fmt.Sprintf("%d nodes", size.nodes), "pods running")
			b.shows("Wrong now")
			b.open("?q=" + fmt.Sprintf("node-%05d", size.nodes-1))
			b.shows("1 node", fmt.Sprintf("node-%05d", size.nodes-1))
			if size.nodes > 100 {
				b.open("pods?ns=team-3")
				b.shows("100 of 2500 pods")
				b.run(chromedp.Click(`a[rel=next]`))
				b.until(`location.search.includes("after=") && ` + live)
				b.shows("First page", "pod-004003")
			}
		})
	}
}

// tabMemory is the anonymous memory of the tab's process.
func (b *browser) tabMemory() string {
	b.t.Helper()
	info, err := chromedp.CallBrowser(b.ctx, systeminfo.GetProcessInfo, cdp.Empty{})
	kit.Must(b.t, err)
	var out []string
	for _, p := range info.ProcessInfo {
		if p.Type != "renderer" {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.ID))
		kit.Must(b.t, err)
		for line := range strings.Lines(string(text)) {
			if kib, ok := strings.CutPrefix(line, "RssAnon:"); ok {
				out = append(out, strings.Join(strings.Fields(kib), " "))
			}
		}
	}
	return strings.Join(out, ", ")
}
