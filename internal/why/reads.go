package why

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// kind is what is known of a kind of objects.
type kind struct {
	words      []string
	namespaced bool
	explain    func(w *World, namespace, name string) *Answer
	// more are reads that follow from what was read of the subject; nil for none.
	more func(w *World) []Read
}

var kinds map[string]kind

func init() {
	kinds = map[string]kind{
		"Pod":                       {[]string{"pod", "pods", "po"}, true, explainPod, readPod},
		"Node":                      {[]string{"node", "nodes", "no"}, false, explainNode, readNode},
		"Service":                   {[]string{"service", "services", "svc"}, true, explainService, readService},
		"PersistentVolumeClaim":     {[]string{"persistentvolumeclaim", "pvc", "claim"}, true, explainClaim, readClaim},
		"Job":                       {[]string{"job", "jobs"}, true, explainJob, readOwned},
		"CronJob":                   {[]string{"cronjob", "cronjobs", "cj"}, true, explainCronJob, readOwned},
		"Deployment":                {[]string{"deployment", "deployments", "deploy"}, true, explainDeployment, readOwned},
		"ReplicaSet":                {[]string{"replicaset", "replicasets", "rs"}, true, explainReplicaSet, readOwned},
		"StatefulSet":               {[]string{"statefulset", "statefulsets", "sts"}, true, explainStatefulSet, readOwned},
		"DaemonSet":                 {[]string{"daemonset", "daemonsets", "ds"}, true, explainDaemonSet, readOwned},
		"HorizontalPodAutoscaler":   {[]string{"horizontalpodautoscaler", "hpa"}, true, explainHPA, readHPA},
		"Namespace":                 {[]string{"namespace", "namespaces", "ns"}, false, explainNamespace, readNamespace},
		"CertificateSigningRequest": {[]string{"certificatesigningrequest", "csr"}, false, explainCSR, nil},
		"PodDisruptionBudget":       {[]string{"poddisruptionbudget", "pdb"}, true, explainBudget, readBudget},
		"Ingress":                   {[]string{"ingress", "ingresses", "ing"}, true, explainIngress, readIngress},
		"APIService":                {[]string{"apiservice", "apiservices"}, false, explainAPIService, nil},
	}
}

// KindOf is the kind of a word that a user types, and whether it lies in a
// namespace.
func KindOf(word string) (name string, namespaced, ok bool) {
	for name, k := range kinds {
		if slices.Contains(k.words, strings.ToLower(word)) {
			return name, k.namespaced, true
		}
	}
	return "", false, false
}

// Words are the words for kinds, as errors list them.
func Words() string {
	return "node, pod, service, pvc, job, cronjob, deployment, replicaset, statefulset, daemonset, hpa, namespace, csr, pdb, ingress and " +
		"apiservice"
}

// Rounds bounds how often one answer goes to the API, in rounds of requests
// that run at the same time.
const Rounds = 5

// maxReads bounds the requests of one answer.
const maxReads = 40

// Next says what has to be read next for an answer: requests that may run at
// the same time. It is empty when Explain can answer.
func Next(w *World) []Read {
	s := w.Subject
	k, known := kinds[s.Kind]
	if w.APIError != "" || !known {
		return nil
	}
	subject := Read{Kind: s.Kind, Namespace: s.Namespace, Name: s.Name}
	want := []Read{subject, eventsOf(s.Kind, s.Namespace, s.Name)}
	if w.listed(subject) && k.more != nil {
		want = append(want, k.more(w)...)
	}
	var out []Read
	for _, r := range want {
		if _, tried := w.Done[r]; !tried && !w.Absent[r] && !slices.Contains(out, r) && len(w.Done)+len(w.Absent)+len(out) < maxReads {
			out = append(out, r)
		}
	}
	return out
}

// eventsOf reads the events about one object.
func eventsOf(kind, namespace, name string) Read {
	fields := "involvedObject.kind=" + kind + ",involvedObject.name=" + name
	return Read{Kind: "Event", Namespace: namespace, Fields: fields}
}

func readPod(w *World) (out []Read) {
	p := one[v1.Pod](w, w.Subject.Namespace, w.Subject.Name)
	if p == nil {
		return nil
	}
	return append(podReads(w, p), Read{Kind: "NetworkPolicy", Namespace: p.Namespace}, Read{Kind: "PodDisruptionBudget",
		Namespace: p.Namespace})
}

// podReads are what one pod's explanation takes.
func podReads(w *World, p *v1.Pod) (out []Read) {
	out = append(out, eventsOf("Pod", p.Namespace, p.Name))
	if n := p.Spec.NodeName; n != "" {
		out = append(out, Read{Kind: "Node", Name: n}, Read{Kind: "Lease", Namespace: v1.NamespaceNodeLease, Name: n})
	} else if p.Status.Phase == v1.PodPending {
		out = append(out, Read{Kind: "Node"})
		if nodes := all[v1.Node](w); len(nodes) > 0 && len(nodes) <= 10 {
			for _, n := range nodes {
				out = append(out, Read{Kind: "Pod", Fields: "spec.nodeName=" + n.Name})
			}
		}
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				c := Read{Kind: "PersistentVolumeClaim", Namespace: p.Namespace, Name: v.PersistentVolumeClaim.ClaimName}
				out = append(append(out, c, eventsOf(c.Kind, c.Namespace, c.Name)), classReads(w, c.Namespace, c.Name)...)
			}
		}
	}
	for _, s := range statuses(p) {
		t := s.State.Terminated
		previous := s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" && s.LastTerminationState.Terminated != nil
		if previous || t != nil && t.ExitCode != 0 {
			out = append(out, Read{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, Container: s.Name})
		}
	}
	return out
}

func readNode(w *World) []Read {
	return []Read{{Kind: "Lease", Namespace: v1.NamespaceNodeLease, Name: w.Subject.Name}}
}

func readService(w *World) []Read {
	s := one[v1.Service](w, w.Subject.Namespace, w.Subject.Name)
	if s == nil {
		return nil
	}
	out := []Read{sliceList(s)}
	if len(s.Spec.Selector) == 0 {
		return out
	}
	sel := labels.SelectorFromSet(s.Spec.Selector)
	list := podList(s)
	out = append(out, list, Read{Kind: "NetworkPolicy", Namespace: s.Namespace})
	pods := selected(w, s.Namespace, sel)
	if w.listed(list) && len(pods) == 0 {
		out = append(out, Read{Kind: "Pod", Namespace: s.Namespace}) // for the nearest
	}
	return append(out, podsReads(w, pods)...)
}

// podsReads are the reads of the first pods of a set that are not well.
func podsReads(w *World, pods []*v1.Pod) (out []Read) {
	n := 0
	for _, p := range pods {
		c := podCondition(p, v1.PodReady)
		if n >= 3 || c != nil && c.Status == v1.ConditionTrue && p.DeletionTimestamp == nil {
			continue
		}
		n++
		out = append(out, podReads(w, p)...)
	}
	return out
}

func readClaim(w *World) []Read {
	s := w.Subject
	out := append(classReads(w, s.Namespace, s.Name), Read{Kind: "Pod", Namespace: s.Namespace})
	if c := one[v1.PersistentVolumeClaim](w, s.Namespace, s.Name); c != nil && c.Status.Phase == v1.ClaimPending {
		out = append(out, podsReads(w, users(w, c))...)
	}
	return out
}

func classReads(w *World, namespace, name string) (out []Read) {
	c := one[v1.PersistentVolumeClaim](w, namespace, name)
	if c == nil {
		return nil
	}
	if n := c.Spec.StorageClassName; n != nil && *n != "" {
		out = append(out, Read{Kind: "StorageClass", Name: *n})
	}
	if c.Spec.VolumeName != "" {
		out = append(out, Read{Kind: "PersistentVolume", Name: c.Spec.VolumeName})
	}
	return out
}

// readOwned reads the pods of an owner, through its ReplicaSets or Jobs.
func readOwned(w *World) (out []Read) {
	s := w.Subject
	pods := func(o metav1.Object, sel *metav1.LabelSelector) {
		out = append(out, Read{Kind: "Pod", Namespace: s.Namespace, Labels: podsOf(sel)})
		out = append(out, podsReads(w, owned(w, o))...)
	}
	if d := one[appsv1.Deployment](w, s.Namespace, s.Name); d != nil && s.Kind == "Deployment" {
		out = append(out, Read{Kind: "ReplicaSet", Namespace: s.Namespace, Labels: podsOf(d.Spec.Selector)},
			Read{Kind: "Pod", Namespace: s.Namespace, Labels: podsOf(d.Spec.Selector)})
		for _, r := range all[appsv1.ReplicaSet](w) {
			if metav1.IsControlledBy(r, d) && replicas(r.Spec.Replicas) > 0 {
				out = append(append(out, eventsOf("ReplicaSet", r.Namespace, r.Name)), podsReads(w, owned(w, r))...)
			}
		}
		return out
	}
	switch s.Kind {
	case "ReplicaSet":
		if r := one[appsv1.ReplicaSet](w, s.Namespace, s.Name); r != nil {
			pods(r, r.Spec.Selector)
		}
	case "StatefulSet":
		if r := one[appsv1.StatefulSet](w, s.Namespace, s.Name); r != nil {
			pods(r, r.Spec.Selector)
		}
	case "DaemonSet":
		if r := one[appsv1.DaemonSet](w, s.Namespace, s.Name); r != nil {
			pods(r, r.Spec.Selector)
			if r.Status.DesiredNumberScheduled == 0 {
				out = append(out, Read{Kind: "Node"})
			}
		}
	case "Job":
		if j := one[batchv1.Job](w, s.Namespace, s.Name); j != nil && j.Spec.Selector != nil {
			pods(j, j.Spec.Selector)
		}
	case "CronJob":
		out = append(out, Read{Kind: "Job", Namespace: s.Namespace})
		for _, j := range all[batchv1.Job](w) {
			if o := metav1.GetControllerOf(j); o != nil && o.Kind == "CronJob" && o.Name == s.Name && j.Spec.Selector != nil {
				pods(j, j.Spec.Selector)
			}
		}
	}
	return out
}

func readHPA(w *World) []Read {
	h := one[autoscalingv2.HorizontalPodAutoscaler](w, w.Subject.Namespace, w.Subject.Name)
	if h == nil {
		return nil
	}
	out := []Read{{Kind: "APIService", Name: "v1beta1.metrics.k8s.io"}}
	if _, ok := kinds[h.Spec.ScaleTargetRef.Kind]; ok {
		out = append(out, Read{Kind: h.Spec.ScaleTargetRef.Kind, Namespace: h.Namespace, Name: h.Spec.ScaleTargetRef.Name})
	}
	return out
}

func readNamespace(w *World) (out []Read) {
	n := one[v1.Namespace](w, "", w.Subject.Name)
	if n == nil || n.DeletionTimestamp == nil {
		return nil
	}
	if namespaceCondition(n, v1.NamespaceDeletionDiscoveryFailure) != "" {
		out = append(out, Read{Kind: "APIService"})
	}
	for i, r := range remainingResources(n) {
		if i < 5 {
			out = append(out, Read{Kind: ResourcePrefix + r, Namespace: n.Name})
		}
	}
	return out
}

// ResourcePrefix stands before the name of a resource ("widgets.example.com")
// in a Read that asks for the metadata of any kind of objects.
const ResourcePrefix = "resource:"

func readBudget(w *World) []Read {
	b := one[policyv1.PodDisruptionBudget](w, w.Subject.Namespace, w.Subject.Name)
	if b == nil {
		return nil
	}
	out := []Read{{Kind: "Pod", Namespace: b.Namespace, Labels: podsOf(b.Spec.Selector)}}
	if sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil {
		out = append(out, podsReads(w, selected(w, b.Namespace, sel))...)
	}
	return out
}

func readIngress(w *World) (out []Read) {
	i := one[networkingv1.Ingress](w, w.Subject.Namespace, w.Subject.Name)
	if i == nil {
		return nil
	}
	for _, b := range backends(i) {
		if b.Service != nil {
			out = append(out, Read{Kind: "Service", Namespace: i.Namespace, Name: b.Service.Name})
		}
	}
	for _, t := range i.Spec.TLS {
		if t.SecretName != "" {
			out = append(out, Read{Kind: "Secret", Namespace: i.Namespace, Name: t.SecretName})
		}
	}
	if i.Spec.IngressClassName != nil {
		out = append(out, Read{Kind: "IngressClass", Name: *i.Spec.IngressClassName})
	}
	return out
}
