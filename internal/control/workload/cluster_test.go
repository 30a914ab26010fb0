package workload

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/control/schedule"
	"github.com/berth-dev/berth/internal/control/workload/certificate"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/testkit/rights"
)

// cluster is a real API server with the scheduler, all workload controllers
// and a stand-in for node agents: it makes bound pods Running and Ready, ends
// those told to end by an annotation, finishes deletions, and has no image that
// is called missing.
type cluster struct {
	*testing.T
	ctx    context.Context
	client *kubernetes.Clientset
	md     metadata.Interface
	config *rest.Config
	ca     []byte
	// agentCA signs what agents serve with.
	agentCA []byte
}

// exitAnnotation tells the stand-in agent to end the pod's containers with
// this code at once.
const exitAnnotation = "test/exit"

func newCluster(t *testing.T, nodes ...string) *cluster {
	t.Helper()
	env := apitest.StartEnv(t)
	cfg := rest.CopyConfig(env.Config)
	cfg.QPS, cfg.Burst = -1, 0
	ctx, cancel := context.WithCancel(t.Context())
	c := &cluster{T: t, ctx: ctx, config: cfg, client: kubernetes.NewForConfigOrDie(cfg), md: metadata.NewForConfigOrDie(cfg)}
	cert, key := selfSignedCA(t)
	c.ca = cert
	var agentKey []byte
	c.agentCA, agentKey = selfSignedCA(t)
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("BERTH_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	f := informers.NewSharedInformerFactory(c.client, 0)
	var wg sync.WaitGroup
	run := func(name string, g func() error) {
		wg.Go(func() {
			if err := g(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	run("scheduler", func() error {
		scheduler := schedule.Controller(schedule.Config{Client: c.client, Informers: f, Log: log})
		return scheduler.Start(controller.Env{Client: c.client, Informers: f, Log: log}, asked.Clients(env.Server.As))(ctx)
	})
	run("controllers", func() error {
		return Run(ctx, Config{Client: c.client, Metadata: c.md, Discovery: c.client.Discovery(), Informers: f, Log: log,
			Clients: asked.Clients(env.Server.As), RootCA: cert, SigningCert: cert, SigningKey: key, ServingSigningCert: c.agentCA,
			ServingSigningKey: agentKey,
			Serving: certificate.ServingRules{ClusterDomain: "cluster.local",
				ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}})
	})
	wg.Go(func() { c.agent() })
	t.Cleanup(func() { cancel(); wg.Wait(); f.Shutdown() })
	for _, n := range nodes {
		c.node(n)
	}
	return c
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// node creates a ready, untainted node.
func (c *cluster) node(name string) {
	c.Helper()
	_, err := c.client.CoreV1().Nodes().Create(c.ctx,
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"),
				v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("110")},
				Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
				Addresses:  []v1.NodeAddress{{Type: v1.NodeHostName, Address: name}, {Type: v1.NodeInternalIP, Address: "10.9.0.1"}}}},
		metav1.CreateOptions{})
	c.must(err)
	_, err = c.client.CoreV1().Nodes().Patch(c.ctx, name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
	c.must(err)
}

// agent plays all node agents until the context ends.
func (c *cluster) agent() {
	ip := 1
	for c.ctx.Err() == nil {
		w, err := c.client.CoreV1().Pods("").Watch(c.ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for ev := range w.ResultChan() {
			if p, ok := ev.Object.(*v1.Pod); ok && ev.Type != watch.Deleted && p.Spec.NodeName != "" {
				ip++
				c.tend(p, fmt.Sprintf("10.1.%d.%d", ip/250, ip%250))
			}
		}
		w.Stop()
	}
}

func (c *cluster) tend(p *v1.Pod, ip string) {
	zero := int64(0)
	if p.DeletionTimestamp != nil {
		err := c.client.CoreV1().Pods(p.Namespace).Delete(c.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero,
			Preconditions: &metav1.Preconditions{UID: &p.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && c.ctx.Err() == nil {
			c.Errorf("finishing the deletion of pod %s: %v", p.Name, err)
		}
		return
	}
	if p.Status.Phase != v1.PodPending || strings.Contains(p.Spec.Containers[0].Image, "missing") {
		return
	}
	now := metav1.Now()
	st := p.DeepCopy()
	st.Status.Phase, st.Status.PodIP, st.Status.PodIPs, st.Status.StartTime = v1.PodRunning, ip, []v1.PodIP{{IP: ip}}, &now
	ready := v1.ConditionTrue
	cs := v1.ContainerStatus{Name: p.Spec.Containers[0].Name, Ready: true,
		State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: now}}}
	if code, ends := p.Annotations[exitAnnotation]; ends {
		ready = v1.ConditionFalse
		st.Status.Phase = v1.PodSucceeded
		n := int32(0)
		if code != "0" {
			n, st.Status.Phase = 1, v1.PodFailed
		}
		cs.Ready, cs.State = false, v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: n, FinishedAt: now}}
	}
	st.Status.ContainerStatuses = []v1.ContainerStatus{cs}
	st.Status.Conditions = append(st.Status.Conditions, v1.PodCondition{Type: v1.PodReady, Status: ready, LastTransitionTime: now})
	if _, err := c.client.CoreV1().Pods(p.Namespace).UpdateStatus(c.ctx, st, metav1.UpdateOptions{}); err != nil &&
		!apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && c.ctx.Err() == nil {
		c.Errorf("reporting pod %s: %v", p.Name, err)
	}
}

// until waits for a condition; what it returns last is the failure's text. It
// looks again whenever any pod or any object of interest may have changed.
func (c *cluster) until(what string, f func() string) {
	c.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := ""
	begin := time.Now()
	for {
		if last = f(); last == "" {
			c.Logf("%s: %s", what, time.Since(begin).Round(time.Millisecond))
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			c.Fatalf("%s: %s", what, last)
		case <-c.ctx.Done():
			c.Fatalf("%s: test ended: %s", what, last)
		}
	}
}

func (c *cluster) pods(ns, selector string) []v1.Pod {
	c.Helper()
	l, err := c.client.CoreV1().Pods(ns).List(c.ctx, metav1.ListOptions{LabelSelector: selector})
	c.must(err)
	return l.Items
}

func (c *cluster) namespace(name string) {
	c.Helper()
	_, err := c.client.CoreV1().Namespaces().Create(c.ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	c.must(err)
}

func template(app string) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "registry.example/app:1",
			Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}}}
}

func newDeployment(name string, n int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{Replicas: &n,
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: template(name)}}
}

func (c *cluster) rolledOut(ns, name string) {
	c.Helper()
	c.until("rolling out deployment "+name, func() string {
		d, err := c.client.AppsV1().Deployments(ns).Get(c.ctx, name, metav1.GetOptions{})
		c.must(err)
		for _, x := range d.Status.Conditions {
			if x.Type == appsv1.DeploymentProgressing && x.Reason == "NewReplicaSetAvailable" &&
				d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == *d.Spec.Replicas &&
				d.Status.Replicas == *d.Spec.Replicas {
				return ""
			}
		}
		return fmt.Sprintf("%+v", d.Status)
	})
}

func TestDeploymentsServicesAndTheirEnd(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	const ns = "shop"
	c.namespace(ns)
	c.until("default service account", func() string {
		_, err := c.client.CoreV1().ServiceAccounts(ns).Get(c.ctx, "default", metav1.GetOptions{})
		return text(err)
	})
	c.until("root CA config map", func() string {
		m, err := c.client.CoreV1().ConfigMaps(ns).Get(c.ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && m.Data["ca.crt"] != string(c.ca) {
			return "holds another certificate"
		}
		return text(err)
	})
	_, err := c.client.CoreV1().Services(ns).Create(c.ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ServiceSpec{
		Selector: map[string]string{"app": "web"},
		Ports:    []v1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}}}, metav1.CreateOptions{})
	c.must(err)
	_, err = c.client.AppsV1().Deployments(ns).Create(c.ctx, newDeployment("web", 3), metav1.CreateOptions{})
	c.must(err)
	c.rolledOut(ns, "web")
	c.endpoints(ns, "web", 3)

	// A new template, then the old one again: revisions count on.
	for i, image := range []string{"registry.example/app:2", "registry.example/app:1"} {
		_, err = c.client.AppsV1().Deployments(ns).Patch(c.ctx, "web", types.StrategicMergePatchType,
			[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"`+image+`"}]}}}}`), metav1.PatchOptions{})
		c.must(err)
		c.rolledOut(ns, "web")
		d, err := c.client.AppsV1().Deployments(ns).Get(c.ctx, "web", metav1.GetOptions{})
		c.must(err)
		if want := fmt.Sprint(i + 2); d.Annotations["deployment.kubernetes.io/revision"] != want {
			t.Errorf("revision %q, want %s", d.Annotations["deployment.kubernetes.io/revision"], want)
		}
		for _, p := range c.pods(ns, "app=web") {
			if p.DeletionTimestamp == nil && p.Spec.Containers[0].Image != image {
				t.Errorf("pod %s still runs %s", p.Name, p.Spec.Containers[0].Image)
			}
		}
	}
	c.endpoints(ns, "web", 3)
	sets, err := c.client.AppsV1().ReplicaSets(ns).List(c.ctx, metav1.ListOptions{})
	c.must(err)
	if len(sets.Items) != 2 {
		t.Errorf("%d replica sets after a rollback, want 2", len(sets.Items))
	}

	// Foreground deletion ends with the owner.
	fg := metav1.DeletePropagationForeground
	c.must(c.client.AppsV1().Deployments(ns).Delete(c.ctx, "web", metav1.DeleteOptions{PropagationPolicy: &fg}))
	c.until("foreground deletion", func() string {
		if _, err := c.client.AppsV1().Deployments(ns).Get(c.ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return "the deployment is still there"
		}
		return ""
	})
	if left := c.pods(ns, "app=web"); len(left) > 0 {
		t.Errorf("%d pods outlived a foreground deletion", len(left))
	}

	// Orphaning leaves the pods; background deletion takes them.
	_, err = c.client.AppsV1().Deployments(ns).Create(c.ctx, newDeployment("kept", 2), metav1.CreateOptions{})
	c.must(err)
	c.rolledOut(ns, "kept")
	orphan := metav1.DeletePropagationOrphan
	c.must(c.client.AppsV1().Deployments(ns).Delete(c.ctx, "kept", metav1.DeleteOptions{PropagationPolicy: &orphan}))
	c.until("orphaning", func() string {
		l, err := c.client.AppsV1().ReplicaSets(ns).List(c.ctx, metav1.ListOptions{LabelSelector: "app=kept"})
		c.must(err)
		if len(l.Items) != 1 || len(l.Items[0].OwnerReferences) != 0 {
			return fmt.Sprintf("%d sets, want one without an owner", len(l.Items))
		}
		return ""
	})
	if n := len(c.pods(ns, "app=kept")); n != 2 {
		t.Errorf("%d pods after orphaning, want 2", n)
	}

	// The namespace takes everything along.
	c.must(c.client.CoreV1().Namespaces().Delete(c.ctx, ns, metav1.DeleteOptions{}))
	c.until("deleting the namespace", func() string {
		n, err := c.client.CoreV1().Namespaces().Get(c.ctx, ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		c.must(err)
		return fmt.Sprintf("%+v", n.Status.Conditions)
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (c *cluster) endpoints(ns, svc string, want int) {
	c.Helper()
	c.until("endpoints of "+svc, func() string {
		l, err := c.client.DiscoveryV1().EndpointSlices(ns).List(c.ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" +
			svc})
		c.must(err)
		n := 0
		for _, s := range l.Items {
			for _, e := range s.Endpoints {
				if *e.Conditions.Ready && *s.Ports[0].Port == 8080 {
					n++
				}
			}
		}
		ep, err := c.client.CoreV1().Endpoints(ns).Get(c.ctx, svc, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		old := 0
		for _, s := range ep.Subsets {
			old += len(s.Addresses)
		}
		if n != want || old != want {
			return fmt.Sprintf("%d in slices, %d in Endpoints, want %d", n, old, want)
		}
		return ""
	})
}

// asked is what the controllers of all tests asked of their servers.
var asked rights.Recorder

// No controller of any test uses a right that it did not declare, or that its
// account does not have: the servers of these tests enforce RBAC.
func TestMain(m *testing.M) {
	code := m.Run()
	for _, wrong := range asked.Wrong() {
		fmt.Println("rights:", wrong)
		code = 1
	}
	if os.Getenv("BERTH_TEST_LOG") != "" {
		fmt.Println(strings.Join(asked.Used(), "\n"))
	}
	os.Exit(code)
}

// Each write carries the identity of the controller that makes it, as the
// server sees it: a policy lets only the replica set controller create pods.
func TestControllersActAsThemselves(t *testing.T) {
	c := newCluster(t, "n")
	rule := func(expression string) []admissionv1.Validation {
		return []admissionv1.Validation{{Expression: expression}}
	}
	deny := admissionv1.Fail
	_, err := c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(c.ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "who"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{FailurePolicy: &deny,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{
				{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}},
			Validations: rule(`request.userInfo.username == "system:serviceaccount:kube-system:replicaset-controller"`)}},
		metav1.CreateOptions{})
	c.must(err)
	_, err = c.client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(c.ctx,
		&admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "who"}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "who",
				ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}, metav1.CreateOptions{})
	c.must(err)
	pod := func(name string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Image: "a"}}}}
	}
	// The policy holds once the server has seen it.
	n := 0
	c.until("the policy refuses a user's pod", func() string {
		n++
		if _, err := c.client.CoreV1().Pods("default").Create(c.ctx, pod(fmt.Sprintf("user-%d", n)),
			metav1.CreateOptions{}); apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			return ""
		}
		return "not yet"
	})
	labels := map[string]string{"app": "a"}
	_, err = c.client.AppsV1().Deployments("default").Create(c.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: pod("").Spec}}}, metav1.CreateOptions{})
	c.must(err)
	c.until("the replica set controller's pod is available", func() string {
		d, err := c.client.AppsV1().Deployments("default").Get(c.ctx, "a", metav1.GetOptions{})
		c.must(err)
		if d.Status.AvailableReplicas != 1 {
			return fmt.Sprintf("%+v", d.Status)
		}
		return ""
	})
	who := "system:serviceaccount:kube-system:"
	for _, want := range []string{who + "deployment-controller deployment-controller create replicasets.apps",
		who + "replicaset-controller replicaset-controller create pods.",
		who + "deployment-controller deployment-controller patch deployments/status.apps",
		who + "replicaset-controller replicaset-controller create events."} {
		if !slices.Contains(asked.Used(), want) {
			t.Errorf("nobody was seen as %q", want)
		}
	}
}
