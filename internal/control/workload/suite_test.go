package workload

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"

	"github.com/berth-dev/berth/internal/control/admit/quota/recount"
	"github.com/berth-dev/berth/internal/control/workload/rootca"
	"github.com/berth-dev/berth/internal/controller"
)

// TestSuite asks of the controllers what the upstream suite asks outside of
// workloads: namespaces, quota, garbage, accounts and endpoints. Each part has
// a namespace of its own.
func TestSuite(t *testing.T) {
	c := newCluster(t, "n1")
	f := informers.NewSharedInformerFactory(c.client, 0)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := recount.Run(c.ctx, controller.Env{Name: "resourcequota-controller", Client: c.client, Informers: f,
			Log: slog.New(slog.DiscardHandler)}); err != nil {
			t.Errorf("quota controller: %v", err)
		}
	})
	t.Cleanup(func() { wg.Wait(); f.Shutdown() })
	for name, test := range map[string]func(*cluster, string){
		"accounts": testAccounts, "mirrored": testMirrored, "endpoints": testEndpoints, "circle": testCircle, "two-owners": testTwoOwners,
		"namespaces": testNamespaces, "quota-of-pods": testQuotaOfPods, "quota-of-objects": testQuotaOfObjects,
		"quota-scopes": testQuotaScopes, "quota-status": testQuotaStatus,
	} {
		t.Run(name, func(t *testing.T) {
			in := *c
			in.T = t
			in.namespace(name)
			in.until("the account is there", func() string {
				_, err := in.client.CoreV1().ServiceAccounts(name).Get(in.ctx, "default", metav1.GetOptions{})
				return text(err)
			})
			test(&in, name)
		})
	}
}

// testAccounts: the certificates of the cluster come back when they are removed
// or changed, and so does the default account.
func testAccounts(c *cluster, ns string) {
	maps := c.client.CoreV1().ConfigMaps(ns)
	whole := func() string {
		m, err := maps.Get(c.ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && (m.Data["ca.crt"] != string(c.ca) || len(m.Data) != 1) {
			return "holds something else"
		}
		return text(err)
	}
	c.until("the certificates are there", whole)
	c.must(maps.Delete(c.ctx, "kube-root-ca.crt", metav1.DeleteOptions{}))
	c.until("they are there again", whole)
	_, err := maps.Patch(c.ctx, "kube-root-ca.crt", types.MergePatchType, []byte(`{"data":{"ca.crt":""}}`), metav1.PatchOptions{})
	c.must(err)
	c.until("they are as they were", whole)
	c.until("kube-system has the CA of agents' serving certificates", func() string {
		m, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(c.ctx, rootca.ServingName, metav1.GetOptions{})
		if err == nil && (m.Data["ca.crt"] != string(c.agentCA) || len(m.Data) != 1) {
			return "holds something else"
		}
		return text(err)
	})
	accounts := c.client.CoreV1().ServiceAccounts(ns)
	_, err = accounts.Create(c.ctx,
		&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "mine", Labels: map[string]string{"mine": "yes"}}}, metav1.CreateOptions{})
	c.must(err)
	c.must(accounts.DeleteCollection(c.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "mine=yes"}))
	c.must(accounts.Delete(c.ctx, "default", metav1.DeleteOptions{}))
	c.until("the default account is there again", func() string {
		list, err := accounts.List(c.ctx, metav1.ListOptions{})
		c.must(err)
		if len(list.Items) == 1 && list.Items[0].Name == "default" {
			return ""
		}
		return fmt.Sprint(len(list.Items))
	})
}

// testMirrored: a slice follows hand-written endpoints through their life.
func testMirrored(c *cluster, ns string) {
	_, err := c.client.CoreV1().Services(ns).Create(c.ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "custom"},
		Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Name: "example", Port: 80}}}}, metav1.CreateOptions{})
	c.must(err)
	endpoints := c.client.CoreV1().Endpoints(ns)
	slices := func(want string) {
		c.Helper()
		c.until("mirrored "+want, func() string {
			l, err := c.client.DiscoveryV1().EndpointSlices(ns).List(c.ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName +
				"=custom"})
			c.must(err)
			got := ""
			for _, s := range l.Items {
				if s.Labels[discoveryv1.LabelManagedBy] != "endpointslicemirroring-controller.k8s.io" {
					got += "not ours "
				}
				for _, e := range s.Endpoints {
					got += fmt.Sprint(e.Addresses[0], ":", *s.Ports[0].Port, " ")
				}
			}
			if got = strings.TrimSpace(got); got == want {
				return ""
			}
			return got
		})
	}
	e, err := endpoints.Create(c.ctx, &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "custom"}, Subsets: []v1.EndpointSubset{
		{Addresses: []v1.EndpointAddress{{IP: "10.1.2.3"}}, Ports: []v1.EndpointPort{{Name: "example", Port: 80}}}}},
		metav1.CreateOptions{})
	c.must(err)
	slices("10.1.2.3:80")
	e.Subsets[0].Addresses[0].IP, e.Subsets[0].Ports[0].Port = "10.2.3.4", 9090
	_, err = endpoints.Update(c.ctx, e, metav1.UpdateOptions{})
	c.must(err)
	slices("10.2.3.4:9090")
	c.must(endpoints.Delete(c.ctx, "custom", metav1.DeleteOptions{}))
	slices("")
}

// testEndpoints: a service shows its pods' ports as the pods come and go, and
// takes its slices and endpoints along when it goes.
func testEndpoints(c *cluster, ns string) {
	_, err := c.client.CoreV1().Services(ns).Create(c.ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "multi"},
		Spec: v1.ServiceSpec{Selector: map[string]string{"foo": "bar"},
			Ports: []v1.ServicePort{{Name: "portname1", Port: 80, TargetPort: intstr.FromString("portname1")},
				{Name: "portname2", Port: 81, TargetPort: intstr.FromString("portname2")}}}}, metav1.CreateOptions{})
	c.must(err)
	shows := func(want string) {
		c.Helper()
		c.until("endpoints "+want, func() string {
			e, err := c.client.CoreV1().Endpoints(ns).Get(c.ctx, "multi", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			got := ""
			for _, s := range e.Subsets {
				for _, a := range s.Addresses {
					for _, p := range s.Ports {
						got += fmt.Sprintf("%s:%s:%d ", a.TargetRef.Name, p.Name, p.Port)
					}
				}
			}
			if got = strings.TrimSpace(got); got == want {
				return ""
			}
			return got
		})
	}
	shows("")
	for i, port := range []string{"portname1", "portname2"} {
		_, err := c.client.CoreV1().Pods(ns).Create(c.ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod", i+1),
			Labels: map[string]string{"foo": "bar"}},
			Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i",
				Ports: []v1.ContainerPort{{Name: port, ContainerPort: int32(100 + i)}}}}}}, metav1.CreateOptions{})
		c.must(err)
		shows([]string{"pod1:portname1:100", "pod1:portname1:100 pod2:portname2:101"}[i])
	}
	c.must(c.client.CoreV1().Pods(ns).Delete(c.ctx, "pod1", metav1.DeleteOptions{}))
	shows("pod2:portname2:101")
	c.must(c.client.CoreV1().Services(ns).Delete(c.ctx, "multi", metav1.DeleteOptions{}))
	c.until("nothing is left of the service", func() string {
		l, err := c.client.DiscoveryV1().EndpointSlices(ns).List(c.ctx, metav1.ListOptions{})
		c.must(err)
		_, err = c.client.CoreV1().Endpoints(ns).Get(c.ctx, "multi", metav1.GetOptions{})
		if len(l.Items) == 0 && apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprint(len(l.Items), err)
	})
}

func (c *cluster) pod(ns, name string, requests v1.ResourceList, change func(*v1.Pod)) (*v1.Pod, error) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}}}
	p.Spec.Containers[0].Resources.Requests = requests
	p.Spec.Containers[0].Resources.Limits = requests
	if change != nil {
		change(p)
	}
	return c.client.CoreV1().Pods(ns).Create(c.ctx, p, metav1.CreateOptions{})
}

func (c *cluster) own(ns, pod string, block bool, owner metav1.Object, apiVersion, kind string) {
	c.Helper()
	p, err := c.client.CoreV1().Pods(ns).Get(c.ctx, pod, metav1.GetOptions{})
	c.must(err)
	body := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"controller":%v,`+
		`"blockOwnerDeletion":%v}],"uid":%q}}`,
		apiVersion, kind, owner.GetName(), owner.GetUID(), block, block, p.UID)
	_, err = c.client.CoreV1().Pods(ns).Patch(c.ctx, pod, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{})
	c.must(err)
}

// testCircle: three pods that own each other all go when one is deleted, and
// nothing waits for itself.
func testCircle(c *cluster, ns string) {
	var made [3]*v1.Pod
	for i := range made {
		var err error
		made[i], err = c.pod(ns, fmt.Sprint("pod", i), nil, nil)
		c.must(err)
	}
	for i := range made {
		c.own(ns, made[i].Name, true, made[(i+2)%3], "v1", "Pod")
	}
	fg := metav1.DeletePropagationForeground
	c.must(c.client.CoreV1().Pods(ns).Delete(c.ctx, "pod0", metav1.DeleteOptions{PropagationPolicy: &fg}))
	c.until("all pods of the circle are gone", func() string {
		if n := len(c.pods(ns, "")); n > 0 {
			return fmt.Sprint(n)
		}
		return ""
	})
}

// testTwoOwners: what another valid owner keeps stays when one owner waits for
// its dependents to go.
func testTwoOwners(c *cluster, ns string) {
	controller := func(name string, n int32) *v1.ReplicationController {
		template := template(name)
		rc, err := c.client.CoreV1().ReplicationControllers(ns).Create(c.ctx,
			&v1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: v1.ReplicationControllerSpec{Replicas: &n, Selector: map[string]string{"app": name}, Template: &template}},
			metav1.CreateOptions{})
		c.must(err)
		return rc
	}
	controller("deleted", 10)
	stays := controller("stays", 0)
	c.until("ten pods", func() string {
		rc, err := c.client.CoreV1().ReplicationControllers(ns).Get(c.ctx, "deleted", metav1.GetOptions{})
		c.must(err)
		if rc.Status.Replicas == 10 && len(c.pods(ns, "app=deleted")) == 10 {
			return ""
		}
		return fmt.Sprint(rc.Status)
	})
	for i, p := range c.pods(ns, "app=deleted") {
		if i%2 == 0 {
			c.own(ns, p.Name, false, stays, "v1", "ReplicationController")
		}
	}
	fg := metav1.DeletePropagationForeground
	c.must(c.client.CoreV1().ReplicationControllers(ns).Delete(c.ctx, "deleted", metav1.DeleteOptions{PropagationPolicy: &fg}))
	c.until("the controller is gone", func() string {
		_, err := c.client.CoreV1().ReplicationControllers(ns).Get(c.ctx, "deleted", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return "still there"
	})
	left := c.pods(ns, "app=deleted")
	for _, p := range left {
		if p.DeletionTimestamp != nil || len(p.OwnerReferences) != 1 || p.OwnerReferences[0].Name != "stays" {
			c.Errorf("pod %s: deleted %v, owners %v", p.Name, p.DeletionTimestamp, p.OwnerReferences)
		}
	}
	if len(left) != 5 {
		c.Errorf("%d pods are left", len(left))
	}
}

// testNamespaces: patch, update, status, a finalizer of one's own, and many
// deletions at once with what is in them.
func testNamespaces(c *cluster, _ string) {
	all := c.client.CoreV1().Namespaces()
	c.namespace("life")
	n, err := all.Patch(c.ctx, "life", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"testLabel":"testValue"}}}`),
		metav1.PatchOptions{})
	c.must(err)
	if n.Labels["testLabel"] != "testValue" || n.Labels[v1.LabelMetadataName] != "life" {
		c.Errorf("labels %v", n.Labels)
	}
	n, err = all.Patch(c.ctx, "life", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"e2e-patched":"yes"}},"status":{"conditions":[{"type":"StatusPatch","status":"True"}]}}`),
		metav1.PatchOptions{}, "status")
	c.must(err)
	if len(n.Status.Conditions) != 1 || n.Status.Phase != v1.NamespaceActive || n.Annotations["e2e-patched"] != "yes" {
		c.Errorf("patched status %v, annotations %v", n.Status, n.Annotations)
	}
	n.Status.Conditions = append(n.Status.Conditions, v1.NamespaceCondition{Type: "StatusUpdate", Status: v1.ConditionTrue, Reason: "E2E"})
	n, err = all.UpdateStatus(c.ctx, n, metav1.UpdateOptions{})
	c.must(err)
	if len(n.Status.Conditions) != 2 {
		c.Errorf("updated status %v", n.Status)
	}
	n.Spec.Finalizers = append(n.Spec.Finalizers, "e2e.example.com/fakeFinalizer")
	n, err = all.Finalize(c.ctx, n, metav1.UpdateOptions{})
	c.must(err)
	if len(n.Spec.Finalizers) != 2 {
		c.Errorf("finalizers %v", n.Spec.Finalizers)
	}
	n.Spec.Finalizers = n.Spec.Finalizers[:1]
	n, err = all.Finalize(c.ctx, n, metav1.UpdateOptions{})
	c.must(err)
	if len(n.Spec.Finalizers) != 1 {
		c.Errorf("finalizers %v", n.Spec.Finalizers)
	}
	const many = 100
	for i := range many {
		ns := fmt.Sprint("nslifetest-", i)
		c.namespace(ns)
		if i%10 == 0 {
			_, err := c.client.CoreV1().Services(ns).Create(c.ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"},
				Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
			c.must(err)
		}
	}
	for i := range many {
		c.must(all.Delete(c.ctx, fmt.Sprint("nslifetest-", i), metav1.DeleteOptions{}))
	}
	c.until("a hundred namespaces are gone", func() string {
		l, err := all.List(c.ctx, metav1.ListOptions{})
		c.must(err)
		left := 0
		for _, n := range l.Items {
			if strings.HasPrefix(n.Name, "nslifetest-") {
				left++
			}
		}
		if left == 0 {
			return ""
		}
		return fmt.Sprint(left)
	})
	c.namespace("nslifetest-0") // the name is free again, and nothing came back
	l, err := c.client.CoreV1().Services("nslifetest-0").List(c.ctx, metav1.ListOptions{})
	c.must(err)
	if len(l.Items) != 0 {
		c.Errorf("a new namespace holds %d services", len(l.Items))
	}
}

func list(pairs ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}
