package view

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/why"
)

// maxNodes bounds the nodes that are judged one by one for a pod in a list of
// what is wrong; beyond it the scheduler's own words tell.
const maxNodes = 200

// explainRef is berth why from memory alone: it costs no request, and sees only
// what the caller may list.
func explainRef(s *Snapshot, r callerRights, ref journal.Ref, now time.Time) why.Answer {
	w := &why.World{Now: now, Subject: ref, Done: map[why.Read]string{}, Absent: map[why.Read]bool{}, Logs: map[string]string{}}
	for range why.Rounds {
		next := why.Next(w)
		if len(next) == 0 {
			break
		}
		for _, read := range next {
			s.read(w, r, read)
		}
	}
	return why.Explain(w)
}

// read answers one read of berth why. What is not in memory counts as read and
// empty: it makes an answer less exact, not wrong.
func (s *Snapshot) read(w *why.World, r callerRights, read why.Read) {
	w.Done[read] = ""
	if read.Container != "" {
		return
	}
	if read.Kind == "Event" {
		o := labelsOf(read.Fields)
		for _, e := range s.events(o["involvedObject.kind"], read.Namespace, o["involvedObject.name"]) {
			w.Objects = append(w.Objects, e)
		}
		return
	}
	resource, known := resources[read.Kind]
	if !known {
		return
	}
	if !may(r, resource, read.Namespace) {
		w.Done[read] = "you may not list " + resource
		return
	}
	if read.Name == "" {
		w.Objects = addNew(w.Objects, s.list(read))
		return
	}
	if o := s.object(read.Kind, read.Namespace, read.Name); o != nil {
		w.Objects = addNew(w.Objects, []metav1.Object{o})
		return
	}
	delete(w.Done, read)
	w.Absent[read] = true
}

// addNew adds objects that are not there yet.
func addNew(have, more []metav1.Object) []metav1.Object {
	seen := make(map[metav1.Object]bool, len(have))
	for _, o := range have {
		seen[o] = true
	}
	for _, o := range more {
		if !seen[o] {
			have = append(have, o)
		}
	}
	return have
}

// resources are those of the kinds that are in memory.
var resources = map[string]string{
	"Node": "nodes", "Pod": "pods", "Service": "services", "Namespace": "namespaces", "EndpointSlice": "endpointslices.discovery.k8s.io",
	"PersistentVolumeClaim": "persistentvolumeclaims", "Deployment": "deployments.apps", "ReplicaSet": "replicasets.apps",
	"StatefulSet": "statefulsets.apps", "DaemonSet": "daemonsets.apps", "Job": "jobs.batch", "CronJob": "cronjobs.batch",
}

// object is one object, or nil.
func (s *Snapshot) object(kind, namespace, name string) metav1.Object {
	switch kind {
	case "Node":
		if n := s.Node(name); n != nil {
			return n
		}
	case "Pod":
		if p := s.Pod(namespace, name); p != nil {
			return p
		}
	case "Service":
		if o := s.Service(namespace, name); o != nil {
			return o
		}
	case "PersistentVolumeClaim":
		if c := s.Claim(namespace, name); c != nil {
			return c
		}
	case "Namespace":
		for _, n := range s.Namespaces() {
			if n.Name == name {
				return n
			}
		}
	default:
		return s.Workload(kind, namespace, name)
	}
	return nil
}

// list are the objects of a list read.
func (s *Snapshot) list(read why.Read) (out []metav1.Object) {
	sel, err := labels.Parse(read.Labels)
	if err != nil {
		return nil
	}
	switch read.Kind {
	case "Node":
		nodes := s.Nodes()
		if len(nodes) > maxNodes {
			return nil
		}
		for _, n := range nodes {
			out = append(out, n)
		}
	case "Pod":
		pods := []*v1.Pod(nil)
		if node := labelsOf(read.Fields)["spec.nodeName"]; node != "" {
			pods = s.PodsOn(node)
		} else {
			pods = s.Pods(read.Namespace)
		}
		for _, p := range pods {
			if sel.Matches(labels.Set(p.Labels)) {
				out = append(out, p)
			}
		}
	case "EndpointSlice":
		service, _ := sel.RequiresExactMatch("kubernetes.io/service-name")
		for _, e := range s.Slices(read.Namespace, service) {
			out = append(out, e)
		}
	default:
		for _, o := range s.Workloads(read.Kind, read.Namespace) {
			if sel.Matches(labels.Set(o.GetLabels())) {
				out = append(out, o)
			}
		}
	}
	return out
}

// labelsOf reads "a=b,c=d".
func labelsOf(text string) map[string]string {
	out := map[string]string{}
	for _, part := range strings.Split(text, ",") {
		if k, v, ok := strings.Cut(part, "="); ok {
			out[k] = v
		}
	}
	return out
}
