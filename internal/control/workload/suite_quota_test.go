package workload

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// quota creates a quota and waits until its status is counted.
func (c *cluster) quota(ns, name string, hard v1.ResourceList, scopes ...v1.ResourceQuotaScope) {
	c.Helper()
	_, err := c.client.CoreV1().ResourceQuotas(ns).Create(c.ctx,
		&v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"q": ns}},
			Spec: v1.ResourceQuotaSpec{Hard: hard, Scopes: scopes}}, metav1.CreateOptions{})
	c.must(err)
	c.until("quota "+name+" is counted", func() string {
		q, err := c.client.CoreV1().ResourceQuotas(ns).Get(c.ctx, name, metav1.GetOptions{})
		c.must(err)
		if len(q.Status.Hard) == len(hard) && len(q.Status.Used) == len(hard) {
			return ""
		}
		return fmt.Sprint(q.Status)
	})
}

// uses waits until the quota shows this use of what is named.
func (c *cluster) uses(ns, name string, want v1.ResourceList) {
	c.Helper()
	c.until("quota "+name+" uses", func() string {
		q, err := c.client.CoreV1().ResourceQuotas(ns).Get(c.ctx, name, metav1.GetOptions{})
		c.must(err)
		for k, w := range want {
			if got, ok := q.Status.Used[k]; !ok || got.Cmp(w) != 0 {
				return fmt.Sprintf("%s: %s, want %s", k, got.String(), w.String())
			}
		}
		return ""
	})
}

func (c *cluster) over(err error, words ...string) {
	c.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
		c.Errorf("got %v, want to be over the quota", err)
	}
	for _, w := range words {
		if !strings.Contains(fmt.Sprint(err), w) {
			c.Errorf("%v lacks %q", err, w)
		}
	}
}

// gone deletes a pod and waits until it is gone.
func (c *cluster) gone(ns, pod string) {
	c.Helper()
	c.must(c.client.CoreV1().Pods(ns).Delete(c.ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
}

func testQuotaOfPods(c *cluster, ns string) {
	c.quota(ns, "q", list("pods", "5", "cpu", "1", "memory", "500Mi", "ephemeral-storage", "50Gi", "requests.example.com/dongle", "3",
		"count/replicasets.apps", "5"))
	_, err := c.pod(ns, "first", list("cpu", "500m", "memory", "252Mi", "ephemeral-storage", "30Gi", "example.com/dongle", "2"), nil)
	c.must(err)
	used := list("pods", "1", "cpu", "500m", "memory", "252Mi", "ephemeral-storage", "30Gi", "requests.example.com/dongle", "2")
	c.uses(ns, "q", used)
	_, err = c.pod(ns, "second", list("cpu", "600m", "memory", "100Mi", "ephemeral-storage", "1Gi"), nil)
	c.over(err, "requested: cpu=600m", "used: cpu=500m", "limited: cpu=1")
	_, err = c.pod(ns, "third", list("cpu", "100m", "memory", "100Mi", "ephemeral-storage", "1Gi", "example.com/dongle", "2"), nil)
	c.over(err, "requests.example.com/dongle=2")
	_, err = c.pod(ns, "fourth", nil, nil)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "must specify cpu") {
		c.Errorf("a pod without requests: %v", err)
	}
	_, err = c.client.CoreV1().Pods(ns).Patch(c.ctx, "first", types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"100m"}}}]}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		c.Errorf("changing requests in place: %v", err)
	}
	c.uses(ns, "q", used)
	c.gone(ns, "first")
	c.uses(ns, "q", list("pods", "0", "cpu", "0", "memory", "0", "ephemeral-storage", "0", "requests.example.com/dongle", "0"))
}

func testQuotaOfObjects(c *cluster, ns string) {
	c.quota(ns, "q", list("services", "10", "services.nodeports", "1", "services.loadbalancers", "1", "replicationcontrollers", "10",
		"resourcequotas", "1", "configmaps", "10", "secrets", "10",
		"persistentvolumeclaims", "10", "requests.storage", "10Gi", "gold.storageclass.storage.k8s.io/persistentvolumeclaims", "10",
		"gold.storageclass.storage.k8s.io/requests.storage", "10Gi", "count/replicasets.apps", "5"))
	c.uses(ns, "q", list("resourcequotas", "1", "services", "0", "configmaps", "1"))
	core := c.client.CoreV1()
	_, err := core.ResourceQuotas(ns).Create(c.ctx, &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "another"}},
		metav1.CreateOptions{})
	c.over(err)
	service := func(name string, typ v1.ServiceType) error {
		_, err := core.Services(ns).Create(c.ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{Type: typ,
			Ports: []v1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
		return err
	}
	c.must(service("plain", v1.ServiceTypeClusterIP))
	c.must(service("port", v1.ServiceTypeNodePort))
	c.over(service("lb", v1.ServiceTypeLoadBalancer), "services.nodeports")
	c.uses(ns, "q", list("services", "2", "services.nodeports", "1", "services.loadbalancers", "0"))
	c.must(core.Services(ns).Delete(c.ctx, "plain", metav1.DeleteOptions{}))
	c.must(core.Services(ns).Delete(c.ctx, "port", metav1.DeleteOptions{}))
	template := template("x")
	_, err = core.ReplicationControllers(ns).Create(c.ctx, &v1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "rc"},
		Spec: v1.ReplicationControllerSpec{Replicas: ptr.To[int32](0), Selector: map[string]string{"app": "x"}, Template: &template}},
		metav1.CreateOptions{})
	c.must(err)
	_, err = core.Secrets(ns).Create(c.ctx, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
	c.must(err)
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("gold"),
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}}}
	claim.Spec.Resources.Requests = list("storage", "1Gi")
	_, err = core.PersistentVolumeClaims(ns).Create(c.ctx, claim, metav1.CreateOptions{})
	c.must(err)
	d := newDeployment("d", 0)
	_, err = c.client.AppsV1().Deployments(ns).Create(c.ctx, d, metav1.CreateOptions{})
	c.must(err)
	c.uses(ns, "q", list("services", "0", "services.nodeports", "0", "replicationcontrollers", "1", "secrets", "1",
		"persistentvolumeclaims", "1", "requests.storage", "1Gi",
		"gold.storageclass.storage.k8s.io/persistentvolumeclaims", "1", "gold.storageclass.storage.k8s.io/requests.storage", "1Gi",
		"count/replicasets.apps", "1"))
	c.must(core.ReplicationControllers(ns).Delete(c.ctx, "rc", metav1.DeleteOptions{}))
	c.must(core.Secrets(ns).Delete(c.ctx, "s", metav1.DeleteOptions{}))
	c.must(core.PersistentVolumeClaims(ns).Delete(c.ctx, "p", metav1.DeleteOptions{}))
	c.must(c.client.AppsV1().Deployments(ns).Delete(c.ctx, "d", metav1.DeleteOptions{}))
	c.uses(ns, "q", list("replicationcontrollers", "0", "secrets", "0", "persistentvolumeclaims", "0", "requests.storage", "0",
		"count/replicasets.apps", "0"))
}

func testQuotaScopes(c *cluster, ns string) {
	compute := list("pods", "5", "requests.cpu", "1", "requests.memory", "500Mi", "limits.cpu", "2", "limits.memory", "1Gi")
	c.quota(ns, "terminating", compute, v1.ResourceQuotaScopeTerminating)
	c.quota(ns, "not-terminating", compute, v1.ResourceQuotaScopeNotTerminating)
	c.quota(ns, "best-effort", list("pods", "5"), v1.ResourceQuotaScopeBestEffort)
	c.quota(ns, "not-best-effort", list("pods", "5"), v1.ResourceQuotaScopeNotBestEffort)
	some, none := list("pods", "1", "requests.cpu", "500m", "limits.memory", "200Mi"), list("pods", "0", "requests.cpu", "0",
		"limits.memory", "0")
	one, zero := list("pods", "1"), list("pods", "0")
	show := func(terminating, not, best, other v1.ResourceList) {
		c.Helper()
		c.uses(ns, "terminating", terminating)
		c.uses(ns, "not-terminating", not)
		c.uses(ns, "best-effort", best)
		c.uses(ns, "not-best-effort", other)
	}
	_, err := c.pod(ns, "long", list("cpu", "500m", "memory", "200Mi"), nil)
	c.must(err)
	show(none, some, zero, one)
	c.gone(ns, "long")
	show(none, none, zero, zero)
	_, err = c.pod(ns, "short", list("cpu", "500m", "memory", "200Mi"),
		func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](3600) })
	c.must(err)
	show(some, none, zero, one)
	c.gone(ns, "short")
	show(none, none, zero, zero)
	for _, q := range []string{"terminating", "not-terminating"} {
		c.must(c.client.CoreV1().ResourceQuotas(ns).Delete(c.ctx, q, metav1.DeleteOptions{}))
	}
	c.until("a pod without requests is let in", func() string {
		_, err := c.pod(ns, "effortless", nil, nil)
		return text(err)
	})
	c.uses(ns, "best-effort", one)
	c.uses(ns, "not-best-effort", zero)
}

// testQuotaStatus: spec and status are written apart, and what the spec says is
// what the status shows in the end.
func testQuotaStatus(c *cluster, ns string) {
	quotas := c.client.CoreV1().ResourceQuotas(ns)
	c.quota(ns, "q", list("cpu", "500m", "memory", "500Mi"))
	_, err := quotas.Patch(c.ctx, "q", types.StrategicMergePatchType, []byte(`{"spec":{"hard":{"cpu":"750m","memory":"750Mi"}}}`),
		metav1.PatchOptions{})
	c.must(err)
	shows := func(want v1.ResourceList) {
		c.Helper()
		c.until("the status follows", func() string {
			q, err := quotas.Get(c.ctx, "q", metav1.GetOptions{})
			c.must(err)
			for k, w := range want {
				if got := q.Status.Hard[k]; got.Cmp(w) != 0 {
					return got.String()
				}
			}
			return ""
		})
	}
	shows(list("cpu", "750m", "memory", "750Mi"))
	q, err := quotas.Patch(c.ctx, "q", types.StrategicMergePatchType, []byte(`{"status":{"hard":{"cpu":"1","memory":"1Gi"}}}`),
		metav1.PatchOptions{}, "status")
	c.must(err)
	if one := list("cpu", "1")["cpu"]; q.Status.Hard.Cpu().Cmp(one) != 0 || q.Spec.Hard.Cpu().String() != "750m" {
		c.Errorf("patched status: %v, spec %v", q.Status.Hard, q.Spec.Hard)
	}
	shows(list("cpu", "750m", "memory", "750Mi"))
	q, err = quotas.Get(c.ctx, "q", metav1.GetOptions{})
	c.must(err)
	q.Spec.Hard = list("cpu", "1", "memory", "1Gi")
	_, err = quotas.Update(c.ctx, q, metav1.UpdateOptions{})
	c.must(err)
	shows(list("cpu", "1", "memory", "1Gi"))
	l, err := c.client.CoreV1().ResourceQuotas("").List(c.ctx, metav1.ListOptions{LabelSelector: "q=" + ns})
	c.must(err)
	if len(l.Items) != 1 {
		c.Errorf("listed %d", len(l.Items))
	}
	c.must(quotas.DeleteCollection(c.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "q=" + ns}))
	if _, err := quotas.Get(c.ctx, "q", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.Errorf("after deleting the collection: %v", err)
	}
}
