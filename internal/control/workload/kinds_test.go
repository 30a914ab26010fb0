package workload

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestDaemonSetsFollowNodes(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	const ns = "default"
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "log"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "log"}}, Template: template("log")}}
	_, err := c.client.AppsV1().DaemonSets(ns).Create(c.ctx, ds, metav1.CreateOptions{})
	c.must(err)
	settled := func(want int32, image string) {
		t.Helper()
		c.until(fmt.Sprintf("%d daemon pods of %s", want, image), func() string {
			got, err := c.client.AppsV1().DaemonSets(ns).Get(c.ctx, "log", metav1.GetOptions{})
			c.must(err)
			if got.Status.NumberAvailable != want || got.Status.DesiredNumberScheduled != want ||
				got.Status.UpdatedNumberScheduled != want || got.Status.ObservedGeneration != got.Generation {
				return fmt.Sprintf("%+v", got.Status)
			}
			on := map[string]int{}
			for _, p := range c.pods(ns, "app=log") {
				if p.DeletionTimestamp == nil {
					on[p.Spec.NodeName]++
					if p.Spec.Containers[0].Image != image {
						return p.Name + " runs " + p.Spec.Containers[0].Image
					}
				}
			}
			if len(on) != int(want) {
				return fmt.Sprintf("pods on %v", on)
			}
			return ""
		})
	}
	settled(2, "registry.example/app:1")
	c.node("n3")
	settled(3, "registry.example/app:1")
	_, err = c.client.AppsV1().DaemonSets(ns).Patch(c.ctx, "log", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"registry.example/app:2"}]}}}}`), metav1.PatchOptions{})
	c.must(err)
	settled(3, "registry.example/app:2")
	_, err = c.client.CoreV1().Nodes().Patch(c.ctx, "n3", types.MergePatchType,
		[]byte(`{"spec":{"taints":[{"key":"away","effect":"NoExecute"}]}}`), metav1.PatchOptions{})
	c.must(err)
	settled(2, "registry.example/app:2")
	revs, err := c.client.AppsV1().ControllerRevisions(ns).List(c.ctx, metav1.ListOptions{})
	c.must(err)
	if len(revs.Items) != 2 {
		t.Errorf("%d revisions, want 2", len(revs.Items))
	}
}

// Upstream's suite: "should rollback without unnecessary restarts".
func TestDaemonSetsGoBackWithoutRestarts(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	const ns = "default"
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "log"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "log"}}, Template: template("log")}}
	_, err := c.client.AppsV1().DaemonSets(ns).Create(c.ctx, ds, metav1.CreateOptions{})
	c.must(err)
	image := func(name string) {
		_, err := c.client.AppsV1().DaemonSets(ns).Patch(c.ctx, "log", types.StrategicMergePatchType,
			[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"registry.example/`+name+`"}]}}}}`),
			metav1.PatchOptions{})
		c.must(err)
	}
	settled := func() map[types.UID]bool {
		uids := map[types.UID]bool{}
		c.until("three ready pods of the first version", func() string {
			clear(uids)
			for _, p := range c.pods(ns, "app=log") {
				if p.DeletionTimestamp == nil && p.Status.Phase == v1.PodRunning && p.Spec.Containers[0].Image == "registry.example/app:1" {
					uids[p.UID] = true
				}
			}
			got, err := c.client.AppsV1().DaemonSets(ns).Get(c.ctx, "log", metav1.GetOptions{})
			c.must(err)
			if len(uids) != 3 || got.Status.UpdatedNumberScheduled != 3 || got.Status.NumberAvailable != 3 ||
				got.Status.ObservedGeneration != got.Generation {
				return fmt.Sprintf("%d pods, %+v", len(uids), got.Status)
			}
			return ""
		})
		return uids
	}
	before := settled()
	image("missing:2")
	c.until("one pod tries the second version", func() string {
		tried, kept := 0, 0
		for _, p := range c.pods(ns, "app=log") {
			switch {
			case strings.Contains(p.Spec.Containers[0].Image, "missing"):
				tried++
			case before[p.UID] && p.DeletionTimestamp == nil:
				kept++
			}
		}
		if tried != 1 || kept != 2 {
			return fmt.Sprintf("%d try it, %d are as before", tried, kept)
		}
		return ""
	})
	image("app:1")
	kept := 0
	for uid := range settled() {
		if before[uid] {
			kept++
		}
	}
	if kept != 2 {
		t.Errorf("%d pods are still the first ones, want 2", kept)
	}
}

func TestStatefulSetsKeepOrderAndClaims(t *testing.T) {
	c := newCluster(t, "n1")
	const ns = "default"
	n := int32(3)
	claim := v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}}}
	for i := range n {
		c.volume(fmt.Sprintf("pv%d", i))
	}
	empty := ""
	claim.Spec.StorageClassName = &empty
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{Replicas: &n, ServiceName: "db",
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: template("db"),
		VolumeClaimTemplates: []v1.PersistentVolumeClaim{claim},
		PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenScaled:  appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
			WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType}}}
	_, err := c.client.AppsV1().StatefulSets(ns).Create(c.ctx, set, metav1.CreateOptions{})
	c.must(err)
	settled := func(want int32, image string) {
		t.Helper()
		c.until(fmt.Sprintf("%d pods of %s", want, image), func() string {
			got, err := c.client.AppsV1().StatefulSets(ns).Get(c.ctx, "db", metav1.GetOptions{})
			c.must(err)
			st := got.Status
			if st.Replicas != want || st.AvailableReplicas != want || st.UpdatedReplicas != want ||
				st.CurrentRevision != st.UpdateRevision || st.ObservedGeneration != got.Generation {
				pods := ""
				for _, p := range c.pods(ns, "app=db") {
					pods += fmt.Sprintf(" %s %s %q %v", p.Name, p.Status.Phase, p.Spec.NodeName, p.Status.Conditions)
				}
				return fmt.Sprintf("%+v%s", st, pods)
			}
			for _, p := range c.pods(ns, "app=db") {
				if p.Spec.Containers[0].Image != image {
					return p.Name + " runs " + p.Spec.Containers[0].Image
				}
			}
			return ""
		})
	}
	settled(3, "registry.example/app:1")
	_, err = c.client.AppsV1().StatefulSets(ns).Patch(c.ctx, "db", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"registry.example/app:2"}]}}}}`), metav1.PatchOptions{})
	c.must(err)
	settled(3, "registry.example/app:2")
	_, err = c.client.AppsV1().StatefulSets(ns).Patch(c.ctx, "db", types.MergePatchType, []byte(`{"spec":{"replicas":1}}`),
		metav1.PatchOptions{})
	c.must(err)
	settled(1, "registry.example/app:2")
	c.until("claims of removed pods to go", func() string {
		l, err := c.client.CoreV1().PersistentVolumeClaims(ns).List(c.ctx, metav1.ListOptions{})
		c.must(err)
		if len(l.Items) != 1 || l.Items[0].Name != "data-db-0" {
			return fmt.Sprintf("%d claims: %+v", len(l.Items), l.Items[len(l.Items)-1].ObjectMeta)
		}
		return ""
	})
}

// volume makes a volume that any claim of 1Gi without a class can use.
func (c *cluster) volume(name string) {
	c.Helper()
	_, err := c.client.CoreV1().PersistentVolumes().Create(c.ctx, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			Capacity:                      v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/tmp/" + name}}}},
		metav1.CreateOptions{})
	c.must(err)
}

func newJob(name, exit string, spec batchv1.JobSpec) *batchv1.Job {
	spec.Template = template(name)
	spec.Template.Annotations = map[string]string{exitAnnotation: exit}
	spec.Template.Spec.RestartPolicy = v1.RestartPolicyNever
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

func TestJobsCountEveryPodOnce(t *testing.T) {
	c := newCluster(t, "n1")
	const ns = "default"
	ten, four, zero := int32(10), int32(4), int32(0)
	indexed := batchv1.IndexedCompletion
	jobs := map[string]*batchv1.Job{
		"plain":   newJob("plain", "0", batchv1.JobSpec{Completions: &ten, Parallelism: &four}),
		"indexed": newJob("indexed", "0", batchv1.JobSpec{Completions: &ten, Parallelism: &four, CompletionMode: &indexed}),
		"broken":  newJob("broken", "1", batchv1.JobSpec{BackoffLimit: &zero}),
		"perindex": newJob("perindex", "1", batchv1.JobSpec{Completions: &four, Parallelism: &four, CompletionMode: &indexed,
			BackoffLimitPerIndex: &zero}),
	}
	for _, j := range jobs {
		_, err := c.client.BatchV1().Jobs(ns).Create(c.ctx, j, metav1.CreateOptions{})
		c.must(err)
	}
	ended := func(name string, end batchv1.JobConditionType, reason string) batchv1.JobStatus {
		t.Helper()
		var st batchv1.JobStatus
		c.until("job "+name+" to end", func() string {
			j, err := c.client.BatchV1().Jobs(ns).Get(c.ctx, name, metav1.GetOptions{})
			c.must(err)
			st = j.Status
			for _, x := range st.Conditions {
				if x.Type == end && x.Status == v1.ConditionTrue {
					if x.Reason != reason {
						c.Errorf("job %s ended for %s, want %s", name, x.Reason, reason)
					}
					return ""
				}
			}
			return fmt.Sprintf("%+v", st)
		})
		return st
	}
	if st := ended("plain", batchv1.JobComplete, "CompletionsReached"); st.Succeeded != 10 || st.Failed != 0 {
		t.Errorf("plain: %d succeeded, %d failed", st.Succeeded, st.Failed)
	}
	if st := ended("indexed", batchv1.JobComplete, "CompletionsReached"); st.Succeeded != 10 || st.CompletedIndexes != "0-9" {
		t.Errorf("indexed: %d succeeded, indexes %q", st.Succeeded, st.CompletedIndexes)
	}
	if st := ended("broken", batchv1.JobFailed, "BackoffLimitExceeded"); st.Failed != 1 {
		t.Errorf("broken: %d failed", st.Failed)
	}
	if st := ended("perindex", batchv1.JobFailed, "FailedIndexes"); st.Failed != 4 || st.FailedIndexes == nil ||
		*st.FailedIndexes != "0-3" {
		t.Errorf("perindex: %+v", st)
	}
	for _, p := range c.pods(ns, "") {
		for _, f := range p.Finalizers {
			if strings.Contains(f, "job-tracking") {
				t.Errorf("pod %s still carries %s", p.Name, f)
			}
		}
	}
	bg := metav1.DeletePropagationBackground
	c.must(c.client.BatchV1().Jobs(ns).Delete(c.ctx, "plain", metav1.DeleteOptions{PropagationPolicy: &bg}))
	c.until("pods to follow their job", func() string {
		if n := len(c.pods(ns, "app=plain")); n > 0 {
			return fmt.Sprintf("%d left", n)
		}
		return ""
	})
}

func TestBudgetsGuardEvictions(t *testing.T) {
	c := newCluster(t, "n1")
	const ns = "default"
	_, err := c.client.AppsV1().Deployments(ns).Create(c.ctx, newDeployment("web", 3), metav1.CreateOptions{})
	c.must(err)
	one := intstr.FromInt32(1)
	_, err = c.client.PolicyV1().PodDisruptionBudgets(ns).Create(c.ctx,
		&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one,
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}, metav1.CreateOptions{})
	c.must(err)
	allowed := func(want int32) {
		t.Helper()
		c.until("disruptions allowed", func() string {
			b, err := c.client.PolicyV1().PodDisruptionBudgets(ns).Get(c.ctx, "web", metav1.GetOptions{})
			c.must(err)
			if b.Status.DisruptionsAllowed != want || b.Status.ExpectedPods != 3 || b.Status.DesiredHealthy != 2 {
				return fmt.Sprintf("%+v", b.Status)
			}
			return ""
		})
	}
	allowed(1)
	pods := c.pods(ns, "app=web")
	evict := func(p v1.Pod) error {
		return c.client.CoreV1().Pods(ns).EvictV1(c.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name}})
	}
	c.must(evict(pods[0]))
	if err := evict(pods[1]); err != nil && !apierrors.IsTooManyRequests(err) {
		t.Errorf("second eviction: %v", err)
	}
	allowed(1) // the replacement is ready
	if n := len(c.pods(ns, "app=web")); n < 3 {
		t.Errorf("%d pods", n)
	}
}
