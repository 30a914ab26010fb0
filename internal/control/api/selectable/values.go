package selectable

import (
	"strconv"

	batch "k8s.io/api/batch/v1"
	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

// Each function puts one kind's values into set and reports whether obj is of
// that kind.

func podFields(obj runtime.Object, set fields.Set) bool {
	p, ok := obj.(*v1.Pod)
	if !ok {
		return false
	}
	set["spec.nodeName"] = p.Spec.NodeName
	set["spec.restartPolicy"] = string(p.Spec.RestartPolicy)
	set["spec.schedulerName"] = p.Spec.SchedulerName
	set["spec.serviceAccountName"] = p.Spec.ServiceAccountName
	set["spec.hostNetwork"] = strconv.FormatBool(p.Spec.HostNetwork)
	set["status.phase"] = string(p.Status.Phase)
	set["status.podIP"] = podIP(p)
	set["status.nominatedNodeName"] = p.Status.NominatedNodeName
	return true
}

// podIP is the first of the pod's addresses, whichever field the writer used.
func podIP(p *v1.Pod) string {
	if len(p.Status.PodIPs) > 0 {
		return p.Status.PodIPs[0].IP
	}
	return p.Status.PodIP
}

func nodeFields(obj runtime.Object, set fields.Set) bool {
	n, ok := obj.(*v1.Node)
	if ok {
		set["spec.unschedulable"] = strconv.FormatBool(n.Spec.Unschedulable)
	}
	return ok
}

func serviceFields(obj runtime.Object, set fields.Set) bool {
	s, ok := obj.(*v1.Service)
	if ok {
		set["spec.clusterIP"] = s.Spec.ClusterIP
		set["spec.type"] = string(s.Spec.Type)
	}
	return ok
}

func namespaceFields(obj runtime.Object, set fields.Set) bool {
	n, ok := obj.(*v1.Namespace)
	if ok {
		set["status.phase"] = string(n.Status.Phase)
	}
	return ok
}

func secretFields(obj runtime.Object, set fields.Set) bool {
	s, ok := obj.(*v1.Secret)
	if ok {
		set["type"] = string(s.Type)
	}
	return ok
}

func controllerFields(obj runtime.Object, set fields.Set) bool {
	rc, ok := obj.(*v1.ReplicationController)
	if ok {
		set["status.replicas"] = strconv.FormatInt(int64(rc.Status.Replicas), 10)
	}
	return ok
}

func jobFields(obj runtime.Object, set fields.Set) bool {
	j, ok := obj.(*batch.Job)
	if ok {
		set["status.successful"] = strconv.FormatInt(int64(j.Status.Succeeded), 10)
	}
	return ok
}

func csrFields(obj runtime.Object, set fields.Set) bool {
	c, ok := obj.(*certificates.CertificateSigningRequest)
	if ok {
		set["spec.signerName"] = c.Spec.SignerName
	}
	return ok
}

func bundleFields(obj runtime.Object, set fields.Set) bool {
	b, ok := obj.(*certificates.ClusterTrustBundle)
	if ok {
		set["spec.signerName"] = b.Spec.SignerName
	}
	return ok
}

func podCertificateFields(obj runtime.Object, set fields.Set) bool {
	r, ok := obj.(*certificates.PodCertificateRequest)
	if ok {
		set["spec.signerName"], set["spec.podName"], set["spec.nodeName"] = r.Spec.SignerName, r.Spec.PodName, string(r.Spec.NodeName)
	}
	return ok
}

func sliceFields(obj runtime.Object, set fields.Set) bool {
	s, ok := obj.(*resource.ResourceSlice)
	if ok {
		node := ""
		if s.Spec.NodeName != nil {
			node = *s.Spec.NodeName
		}
		set["spec.nodeName"] = node
		set["spec.driver"] = s.Spec.Driver
	}
	return ok
}

// eventFields reads both spellings of an event.
func eventFields(obj runtime.Object, set fields.Set) bool {
	var about v1.ObjectReference
	var reason, reporter, source, kind string
	switch e := obj.(type) {
	case *v1.Event:
		about, reason, reporter, source, kind = e.InvolvedObject, e.Reason, e.ReportingController, e.Source.Component, e.Type
	case *events.Event:
		about, reason, reporter, source, kind = e.Regarding, e.Reason, e.ReportingController, e.DeprecatedSource.Component, e.Type
	default:
		return false
	}
	if source == "" {
		source = reporter
	}
	set["involvedObject.kind"] = about.Kind
	set["involvedObject.namespace"] = about.Namespace
	set["involvedObject.name"] = about.Name
	set["involvedObject.uid"] = string(about.UID)
	set["involvedObject.apiVersion"] = about.APIVersion
	set["involvedObject.resourceVersion"] = about.ResourceVersion
	set["involvedObject.fieldPath"] = about.FieldPath
	set["reason"] = reason
	set["reportingComponent"] = reporter
	set["source"] = source
	set["type"] = kind
	return true
}
