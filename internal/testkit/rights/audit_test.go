package rights_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/addresses"
	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/control/auth/aggregate"
	"github.com/berth-dev/berth/internal/control/schedule"
	"github.com/berth-dev/berth/internal/control/workload"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/dns"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/nodes"
	"github.com/berth-dev/berth/internal/nodes/ipam"
)

// recorded is a control plane with all its controllers, and the log that its
// server keeps of requests.
type recorded struct {
	*testing.T
	client *kubernetes.Clientset
	file   string
}

// start runs everything that acts in a server's process; policy is the audit
// policy's file, empty for the built-in one.
func start(t *testing.T, policy string) *recorded {
	file := filepath.Join(t.TempDir(), "audit.log")
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) {
		c.Options = api.NewOptions()
		c.Options.Fairness, c.Options.Audit.PolicyFile = false, policy
		c.Options.Audit.LogOptions.Path, c.Options.Audit.LogOptions.BatchOptions.Mode = file, "blocking"
	}))
	r := &recorded{T: t, client: kubernetes.NewForConfigOrDie(env.Config), file: file}
	ctx, cancel := context.WithCancel(t.Context())
	log, as := slog.New(slog.DiscardHandler), controller.Acting(env.Server.As)
	shared := informers.NewSharedInformerFactory(r.client, 0)
	var wg sync.WaitGroup
	run := func(name string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait(); shared.Shutdown() })
	base := controller.Env{Client: r.client, Informers: shared, Log: log}
	run("scheduler", schedule.Controller(schedule.Config{Client: r.client, Informers: shared, Log: log}).Start(base, as))
	publisher := dns.Publisher{ClusterIP: net.ParseIP("10.0.0.10"), Host: "m", Own: netip.MustParseAddrPort("192.0.2.1:53")}
	run("dns", publisher.Controller().Start(base, as))
	run("controllers", func(ctx context.Context) error {
		return workload.Run(ctx, workload.Config{Client: r.client, Metadata: metadata.NewForConfigOrDie(env.Config),
			Discovery: r.client.Discovery(),
			Informers: shared, Log: log, Clients: as, RootCA: []byte("ca")})
	})
	list, err := nodes.Controllers(nodes.Config{Client: r.client, Informers: shared, Log: log, Clients: as,
		Recorders: kube.NewRecorders(ctx),
		Ranges:    []ipam.Range{{Cluster: netip.MustParsePrefix("10.1.0.0/16"), NodeBits: 24}}})
	r.must(err)
	for _, c := range list {
		run(c.Name, c.Run)
	}
	return r
}

func (r *recorded) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// act has every room of controllers do something.
func (r *recorded) act() {
	ctx := r.Context()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{
		Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("10")},
		Conditions:  []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}}
	_, err := r.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	r.must(err)
	labels := map[string]string{"app": "a"}
	_, err = r.client.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Image: "a"}}}}}}, metav1.CreateOptions{})
	r.must(err)
	_, err = r.client.CoreV1().Services("default").Create(ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: v1.ServiceSpec{Selector: labels, Ports: []v1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	r.must(err)
	_, err = r.client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"ships"}}}},
		metav1.CreateOptions{})
	r.must(err)
	_, err = r.client.NetworkingV1().ServiceCIDRs().Create(ctx, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.2.0.0/24"}}}, metav1.CreateOptions{})
	r.must(err)
}

// evict has the taint eviction controller delete the pods of the node.
func (r *recorded) evict() {
	_, err := r.client.CoreV1().Nodes().Patch(r.Context(), "n", types.StrategicMergePatchType,
		[]byte(`{"spec":{"taints":[{"key":"example.com/leave","effect":"NoExecute"}]}}`), metav1.PatchOptions{})
	r.must(err)
}

// request is one line of the log in the words of RBAC.
type request struct{ user, verb, resource string }

// log reads what the server recorded so far.
func (r *recorded) log() (all []auditv1.Event, seen map[request]bool) {
	r.Helper()
	raw, err := os.ReadFile(r.file)
	r.must(err)
	seen = map[request]bool{}
	for line := range bytes.Lines(raw) {
		var e auditv1.Event
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // still being written
		}
		r.must(json.Unmarshal(line, &e))
		if e.ObjectRef == nil {
			continue
		}
		all = append(all, e)
		seen[request{e.User.Username, e.Verb, resourceOf(e.ObjectRef)}] = true
	}
	return all, seen
}

func resourceOf(o *auditv1.ObjectReference) string {
	name := o.Resource
	if o.Subresource != "" {
		name += "/" + o.Subresource
	}
	return strings.TrimSuffix(name+"."+o.APIGroup, ".")
}

// await waits until the log has all requests.
func (r *recorded) await(want []request) {
	r.Helper()
	deadline := time.After(60 * time.Second)
	for {
		_, seen := r.log()
		missing := slices.DeleteFunc(slices.Clone(want), func(w request) bool { return seen[w] })
		if len(missing) == 0 {
			return
		}
		select {
		case <-deadline:
			r.Fatalf("the log never had %v; it has %v", missing, slices.Collect(maps.Keys(seen)))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

const account = "system:serviceaccount:kube-system:"

// began is who must have done what before a pod is evicted, evicted after.
var (
	began = []request{
		{account + "deployment-controller", "create", "replicasets.apps"},
		{account + "deployment-controller", "patch", "deployments/status.apps"},
		{account + "replicaset-controller", "create", "pods"},
		{"system:kube-scheduler", "create", "pods/binding"},
		{account + "endpointslice-controller", "create", "endpointslices.discovery.k8s.io"},
		{account + "endpoint-controller", "create", "endpoints"},
		{account + "service-account-controller", "create", "serviceaccounts"},
		{account + "root-ca-cert-publisher", "create", "configmaps"},
		{account + "node-controller", "patch", "nodes"},
		{account + "ttl-controller", "patch", "nodes"},
		{account + "clusterrole-aggregation-controller", "patch", "clusterroles.rbac.authorization.k8s.io"},
		{account + "service-cidrs-controller", "patch", "servicecidrs/status.networking.k8s.io"},
		{account + "dns-publisher", "create", "services"},
		{account + "dns-publisher", "create", "endpointslices.discovery.k8s.io"},
	}
	evicted = []request{
		{account + "node-controller", "patch", "pods/status"},
		{account + "node-controller", "delete", "pods"},
	}
)

func everyone() []controller.Controller {
	return slices.Concat(workload.List(), nodes.List(), []controller.Controller{
		schedule.Controller(schedule.Config{}), aggregate.Controller(), addresses.Controller(), dns.Publisher{}.Controller()})
}

// The log of a server with the built-in policy tells which controller did what.
func TestAuditLogTellsWhichControllerDidIt(t *testing.T) {
	r := start(t, "")
	r.act()
	r.await(began)
	r.evict()
	r.await(evicted)
}

// A log of every request has none that its controller did not declare, none of
// a controller that was forbidden, and none that the process itself made in a
// controller's place.
func TestNoControllerAsksForMoreThanItDeclares(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy,
		[]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\nomitStages: [RequestReceived]\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	declared := map[string][]rbacv1.PolicyRule{}
	for _, c := range everyone() {
		name, _ := c.Identity()
		rules, err := kube.ParseRules(c.Reads + "\n" + c.Writes)
		if err != nil {
			t.Fatal(err)
		}
		declared[name] = append(declared[name], rules...)
	}
	r := start(t, policy)
	r.act()
	r.await(began)
	r.evict()
	r.await(evicted)
	all, _ := r.log()
	checked := 0
	for _, e := range all {
		rules, known := declared[e.User.Username]
		if e.User.Username == "system:apiserver" && !slices.Contains([]string{"get", "list", "watch"}, e.Verb) &&
			slices.Contains([]string{"pods", "nodes", "replicasets", "deployments", "serviceaccounts", "events"}, e.ObjectRef.Resource) {
			t.Errorf("the process itself made the request %s %s", e.Verb, e.RequestURI)
		}
		if !known {
			if strings.HasPrefix(e.User.Username, account) {
				t.Errorf("%s, which is nobody's account, made the request %s %s", e.User.Username, e.Verb, e.RequestURI)
			}
			continue
		}
		checked++
		rule := rbacv1.PolicyRule{Verbs: []string{e.Verb}, APIGroups: []string{e.ObjectRef.APIGroup},
			Resources: []string{e.ObjectRef.Resource}}
		if e.ObjectRef.Subresource != "" {
			rule.Resources[0] += "/" + e.ObjectRef.Subresource
		}
		if e.ObjectRef.Name != "" && e.Verb != "create" {
			rule.ResourceNames = []string{e.ObjectRef.Name}
		}
		if ok, _ := validation.Covers(rules, []rbacv1.PolicyRule{rule}); !ok {
			t.Errorf("%s made the request %s %s, which no controller of that name declares", e.User.Username, e.Verb, e.RequestURI)
		}
		if e.ResponseStatus != nil && e.ResponseStatus.Code == 403 {
			t.Errorf("%s was forbidden to %s %s", e.User.Username, e.Verb, e.RequestURI)
		}
	}
	if checked < len(began) {
		t.Errorf("%d requests of controllers in the log, want at least %d", checked, len(began))
	}
}
