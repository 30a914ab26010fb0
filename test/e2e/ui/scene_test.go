package ui

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/ui"
	"github.com/berth-dev/berth/internal/ui/view"
	"github.com/berth-dev/berth/test/e2e/kit"
)

// scene is an API server in this process with objects that no controller
// touches: nodes of three zones, of which one is silent, and workloads of which
// some fail.
type scene struct {
	env    *apitest.Env
	client kubernetes.Interface
	now    time.Time
}

const shop, ops = "shop", "ops"

func newScene(t *testing.T) *scene {
	t.Helper()
	env := apitest.StartEnv(t)
	client, err := kubernetes.NewForConfig(env.Config)
	kit.Must(t, err)
	s := &scene{env: env, client: client, now: time.Now()}
	life, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	env.Server.ServeUI(ui.New(ui.Config{
		Informers: informers.NewSharedInformerFactory(client, 0), Loopback: env.Server.LoopbackConfig(),
		Authorizer: env.Server.Auth().Authorizer, Records: s.records, Outlook: outlook,
		Zones: func() []view.Zone {
			return []view.Zone{{Name: "eu/a", State: "Normal", Ready: 4, Rate: 0.1, Tokens: 1},
				{Name: "eu/b", State: "Normal", Ready: 3, NotReady: 1, Rate: 0.1, Tokens: 0.4, Waiting: 1}, {Name: "eu/c", State: "Normal",
					Ready: 4,
					Rate:  0.1, Tokens: 1}}
		},
		Parts: func() []view.Part { return []view.Part{{Name: "scheduler", Since: s.now.Add(-time.Hour)}} },
		Certificates: func() []view.Certificate {
			return []view.Certificate{{Name: "API server", End: s.now.AddDate(0, 9, 0)}}
		},
		Life: life, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}))
	s.nodes(t)
	s.workloads(t)
	s.users(t)
	return s
}

func outlook(node string) (journal.Record, bool) {
	r := journal.Record{Part: "health", Decision: "is heard and ready"}
	if node == "b-2" {
		r.Decision = "is silent and marked Unknown"
		r.Because = []journal.Fact{{Name: "deadline", Value: "passed 3m12s ago, grace period 50s"},
			{Name: "NoExecute token", Value: "number 1 of 1 waiting, due in 6s"}}
	}
	return r, true
}

func (s *scene) records(ref journal.Ref) []journal.Record {
	if ref.Kind != "Pod" || ref.Name != "web-7d9c-1" {
		return nil
	}
	return []journal.Record{{Time: s.now.Add(900 * time.Millisecond), Part: "scheduler", Object: ref, Decision: "placed on a-1",
		Because: []journal.Fact{{Name: "score", Value: "a-1 92, a-2 87, c-1 85"}}}}
}

func (s *scene) ago(d time.Duration) metav1.Time { return metav1.NewTime(s.now.Add(-d)) }

func (s *scene) nodes(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	_, err := s.client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1.NamespaceNodeLease}},
		metav1.CreateOptions{})
	_ = err // the server makes it too
	for _, zone := range []string{"a", "b", "c"} {
		for i := range 4 {
			name := fmt.Sprintf("%s-%d", zone, i+1)
			n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelTopologyRegion: "eu",
				v1.LabelTopologyZone: zone, v1.LabelHostname: name}}}
			if name == "c-4" {
				n.Spec.Taints = []v1.Taint{{Key: "gpu", Value: "only", Effect: v1.TaintEffectNoSchedule}}
			}
			created, err := s.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
			kit.Must(t, err)
			created.Spec.Taints = n.Spec.Taints // without that of a new node
			created, err = s.client.CoreV1().Nodes().Update(ctx, created, metav1.UpdateOptions{})
			kit.Must(t, err)
			created.Status = nodeStatus(s, name)
			_, err = s.client.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{})
			kit.Must(t, err)
			renewed := metav1.NewMicroTime(created.Status.Conditions[0].LastHeartbeatTime.Time)
			_, err = s.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &renewed}},
				metav1.CreateOptions{})
			kit.Must(t, err)
		}
	}
}

func nodeStatus(s *scene, name string) v1.NodeStatus {
	room := v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("32Gi"),
		v1.ResourcePods: resource.MustParse("110")}
	ready := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "the agent is ready",
		LastHeartbeatTime: s.ago(4 * time.Second), LastTransitionTime: s.ago(9 * time.Hour)}
	pressure := v1.NodeCondition{Type: v1.NodeDiskPressure, Status: v1.ConditionFalse, Reason: "KubeletHasNoDiskPressure",
		LastHeartbeatTime: s.ago(4 * time.Second), LastTransitionTime: s.ago(9 * time.Hour)}
	switch name {
	case "b-2":
		ready.Status, ready.Reason, ready.Message = v1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
		ready.LastHeartbeatTime, ready.LastTransitionTime = s.ago(242*time.Second), s.ago(192*time.Second)
	case "c-3":
		pressure.Status, pressure.Reason, pressure.Message = v1.ConditionTrue, "KubeletHasDiskPressure", "nodefs.available is 3.1Gi of 80Gi"
		pressure.LastTransitionTime = s.ago(11 * time.Minute)
	}
	if name == "c-4" {
		room["gpu.example/card"] = resource.MustParse("4")
	}
	return v1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []v1.NodeCondition{ready, pressure},
		Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0." + fmt.Sprint(len(name)+int(name[0]))}},
		NodeInfo: v1.NodeSystemInfo{KubeletVersion: "v1.37.2", ContainerRuntimeVersion: "containerd://2.2.0",
			OSImage:       "Debian GNU/Linux 13",
			KernelVersion: "6.12.41", Architecture: "amd64"},
		Images: []v1.ContainerImage{{Names: []string{"reg.example/web:2"}, SizeBytes: 48 << 20}, {Names: []string{"reg.example/db:17"},
			SizeBytes: 310 << 20}}}
}

// pod makes a pod with the status that a change of a running one gives.
func (s *scene) pod(t *testing.T, ns, name, node string, owner metav1.Object, kind string, change func(*v1.Pod)) {
	t.Helper()
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"app": kind}},
		Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "app", Image: "reg.example/web:2",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"),
				v1.ResourceMemory: resource.MustParse("2Gi")}}}}}}
	if owner != nil {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: ownerKind(owner), Name: owner.GetName(),
			UID: owner.GetUID(), Controller: &yes}}
	}
	// The API server sets the time of creation: the pod's life lies a little ahead.
	at := func(d time.Duration) metav1.Time { return s.ago(-d) }
	p.Status = v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.1.0.7", Conditions: []v1.PodCondition{
		{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: at(time.Second)},
		{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue, LastTransitionTime: at(2 * time.Second)},
		{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: at(9 * time.Second)}},
		ContainerStatuses: []v1.ContainerStatus{{Name: "app", Image: "reg.example/web:2", Ready: true,
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: at(7 * time.Second)}}}}}
	if change != nil {
		change(p)
	}
	status := p.Status
	pods := s.client.CoreV1().Pods(ns)
	created, err := pods.Create(t.Context(), p, metav1.CreateOptions{})
	kit.Must(t, err)
	created.Status = status
	_, err = pods.UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
	kit.Must(t, err)
}

func ownerKind(o metav1.Object) string {
	if _, ok := o.(*appsv1.ReplicaSet); ok {
		return "ReplicaSet"
	}
	return "StatefulSet"
}

// deployment makes one with a ReplicaSet; the pods are the caller's.
func (s *scene) deployment(t *testing.T, ns, name string, want, ready int32) *appsv1.ReplicaSet {
	t.Helper()
	labels := map[string]string{"app": name}
	template := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{Containers: []v1.Container{
		{Name: "app", Image: "reg.example/" + name + ":2"}}}}
	d, err := s.client.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: &want, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}},
		metav1.CreateOptions{})
	kit.Must(t, err)
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: want, UpdatedReplicas: want, ReadyReplicas: ready,
		AvailableReplicas: ready}
	_, err = s.client.AppsV1().Deployments(ns).UpdateStatus(t.Context(), d, metav1.UpdateOptions{})
	kit.Must(t, err)
	yes := true
	rs, err := s.client.AppsV1().ReplicaSets(ns).Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name + "-7d9c",
		Labels: labels, Annotations: map[string]string{"deployment.kubernetes.io/revision": "3"}, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "Deployment", Name: name, UID: d.UID, Controller: &yes}}},
		Spec: appsv1.ReplicaSetSpec{Replicas: &want, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}},
		metav1.CreateOptions{})
	kit.Must(t, err)
	return rs
}

func (s *scene) workloads(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for _, ns := range []string{shop, ops} {
		_, err := s.client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		kit.Must(t, err)
		_, err = s.client.CoreV1().ServiceAccounts(ns).Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
			metav1.CreateOptions{})
		kit.Must(t, err)
	}
	web := s.deployment(t, shop, "web", 6, 6)
	for i, node := range []string{"a-1", "a-2", "b-1", "b-3", "c-1", "c-2"} {
		s.pod(t, shop, fmt.Sprintf("web-7d9c-%d", i+1), node, web, "web", nil)
	}
	cart := s.deployment(t, shop, "cart", 3, 0)
	for i, node := range []string{"a-3", "b-4", "c-1"} {
		s.pod(t, shop, fmt.Sprintf("cart-7d9c-%d", i+1), node, cart, "cart", func(p *v1.Pod) {
			p.Status.Phase = v1.PodPending
			p.Status.Conditions[2].Status = v1.ConditionFalse
			p.Status.ContainerStatuses[0].Ready = false
			p.Status.ContainerStatuses[0].State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff",
				Message: `Back-off pulling image "reg.example/cart:2": rpc error: code = NotFound desc = manifest unknown: not found`}}
		})
	}
	big := s.deployment(t, ops, "train", 1, 0)
	s.pod(t, ops, "train-7d9c-1", "", big, "train", func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("64")
		p.Status = v1.PodStatus{Phase: v1.PodPending, Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse,
			Reason: "Unschedulable", Message: "0/12 nodes are available: 11 Insufficient cpu.",
			LastTransitionTime: s.ago(4 * time.Minute)}}}
	})
	s.events(t)
	yes, port, tcp, node := true, int32(8080), v1.ProtocolTCP, "a-1"
	_, err := s.client.CoreV1().Services(shop).Create(ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []v1.ServicePort{{Port: 80, Protocol: tcp}}}}, metav1.CreateOptions{})
	kit.Must(t, err)
	_, err = s.client.DiscoveryV1().EndpointSlices(shop).Create(ctx, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web-1",
		Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &tcp}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.7"},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes}, NodeName: &node, TargetRef: &v1.ObjectReference{Kind: "Pod",
				Namespace: shop, Name: "web-7d9c-1"}}}}, metav1.CreateOptions{})
	kit.Must(t, err)
	_, err = s.client.CoreV1().Secrets(shop).Create(ctx, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"},
		StringData: map[string]string{"key": "never-shown"}}, metav1.CreateOptions{})
	kit.Must(t, err)
}

func (s *scene) events(t *testing.T) {
	t.Helper()
	for i, e := range []struct {
		reason, message string
		ago             time.Duration
	}{
		{"Scheduled", "Successfully assigned shop/web-7d9c-1 to a-1", -1 * time.Second},
		{"Pulling", `Pulling image "reg.example/web:2"`, -2 * time.Second},
		{"Pulled", `Successfully pulled image "reg.example/web:2" in 4.213s (4.213s including waiting). Image size: 50331648 bytes.`,
			-6 * time.Second},
		{"Started", "Container started", -7 * time.Second},
	} {
		_, err := s.client.CoreV1().Events(shop).Create(t.Context(), &v1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e%d", i)},
			InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: shop, Name: "web-7d9c-1"}, Reason: e.reason, Message: e.message,
			Type: v1.EventTypeNormal, FirstTimestamp: s.ago(e.ago), LastTimestamp: s.ago(e.ago), Count: 1,
			Source: v1.EventSource{Component: "kubelet"}}, metav1.CreateOptions{})
		kit.Must(t, err)
	}
}

// users: everybody who is authenticated may get the page, dana may list pods and
// Deployments of one namespace, and nobody nothing.
func (s *scene) users(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	rbac := s.client.RbacV1()
	_, err := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "page"}, Rules: []rbacv1.PolicyRule{
		{NonResourceURLs: []string{"/ui", "/ui/*"}, Verbs: []string{"get"}}}}, metav1.CreateOptions{})
	kit.Must(t, err)
	_, err = rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "page"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "page"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:authenticated"}}},
		metav1.CreateOptions{})
	kit.Must(t, err)
	_, err = rbac.Roles(ops).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "dana"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"", "apps"}, Resources: []string{"pods", "deployments", "replicasets"}, Verbs: []string{"get", "list"}}}},
		metav1.CreateOptions{})
	kit.Must(t, err)
	_, err = rbac.RoleBindings(ops).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "dana"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "dana"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "dana"}}}, metav1.CreateOptions{})
	kit.Must(t, err)
}

// as is a client of a user.
func (s *scene) as(t *testing.T, user string, groups ...string) *rest.Config {
	return s.env.As(t, user, groups...)
}
