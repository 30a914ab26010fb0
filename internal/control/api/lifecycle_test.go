package api_test

import (
	"context"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/control/store"
)

// TestRestartKeepsData stops the server and starts another one on its data.
func TestRestartKeepsData(t *testing.T) {
	dir := t.TempDir()
	first := apitest.StartEnv(t, apitest.WithDir(dir))
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"k": "v"}}
	made, err := clients(t, first.Config).CoreV1().ConfigMaps("default").Create(context.Background(), cm, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first.Stop()
	second := apitest.StartEnv(t, apitest.WithDir(dir))
	kept, err := clients(t, second.Config).CoreV1().ConfigMaps("default").Get(context.Background(), "kept", metav1.GetOptions{})
	if err != nil || kept.UID != made.UID || kept.ResourceVersion != made.ResourceVersion {
		t.Errorf("after the restart: %+v, %v", kept, err)
	}
}

// TestStopEndsWatches: an open watch does not hold up the server's end, and
// the client sees it closed.
func TestStopEndsWatches(t *testing.T) {
	env := apitest.StartEnv(t)
	w, err := clients(t, env.Config).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	began := time.Now()
	env.Stop()
	t.Logf("stopped in %s", time.Since(began).Round(time.Millisecond))
	for range w.ResultChan() {
	}
}

// TestInitialObjects: what every cluster starts with is there, and comes back.
func TestInitialObjects(t *testing.T) {
	env := apitest.StartEnv(t)
	c := clients(t, env.Config)
	svc, err := c.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || svc.Spec.ClusterIP != "10.0.0.1" || svc.Spec.Ports[0].Port != 443 || svc.Labels["component"] != "apiserver" {
		t.Errorf("service: %+v, %v", svc, err)
	}
	port := int32(env.Server.Address().(*net.TCPAddr).Port)
	slice, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || slice.Endpoints[0].Addresses[0] != apitest.AdvertisedAddress || *slice.Ports[0].Port != port {
		t.Errorf("slice: %+v, %v", slice, err)
	}
	class, err := c.SchedulingV1().PriorityClasses().Get(t.Context(), "system-node-critical", metav1.GetOptions{})
	if err != nil || class.Value != 2000001000 {
		t.Errorf("priority class: %+v, %v", class, err)
	}
	if _, err := c.RbacV1().ClusterRoles().Get(t.Context(), "cluster-admin", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	cidr, err := c.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || cidr.Spec.CIDRs[0] != "10.0.0.0/24" || len(cidr.Status.Conditions) != 1 {
		t.Errorf("service range: %+v, %v", cidr, err)
	}
	w, err := c.DiscoveryV1().EndpointSlices("default").Watch(t.Context(), metav1.ListOptions{
		ResourceVersion: slice.ResourceVersion, TimeoutSeconds: ptr.To[int64](60)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := c.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := next(t, w); e.Type != watch.Added; e = next(t, w) {
	}
}

// TestPriorityAndFairness: the queues exist and requests say which they took.
func TestPriorityAndFairness(t *testing.T) {
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) { c.PriorityAndFairness = true }))
	c := clients(t, env.Config)
	schema, err := c.FlowcontrolV1().FlowSchemas().Get(t.Context(), "service-accounts", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(env.As(t, "someone"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(env.Config.Host + "/api/v1/nodes")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("X-Kubernetes-Pf-Flowschema-Uid"); got == "" || got == string(schema.UID) {
		t.Errorf("a user's request took flow schema %q", got)
	}
}

// TestExternalEtcd runs two servers on one etcd that neither of them owns:
// what one writes, the other shows, and both are endpoints of the API service.
func TestExternalEtcd(t *testing.T) {
	etcd, err := store.Start(t.Context(), store.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	external := apitest.WithEtcd(etcd.Transport().ServerList...)
	first := apitest.StartEnv(t, external)
	second := apitest.StartEnv(t, external, apitest.WithConfig(func(c *api.Config) {
		c.AdvertiseAddress = net.IPv4(192, 0, 2, 11)
	}))
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "shared"}}
	made, err := clients(t, first.Config).CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := clients(t, second.Config)
	got, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "shared", metav1.GetOptions{})
	if err != nil || got.UID != made.UID {
		t.Errorf("through the other server: %v, %v", got, err)
	}
	slice, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || len(slice.Endpoints) != 2 {
		t.Errorf("endpoints: %v, %v", slice, err)
	}
}
