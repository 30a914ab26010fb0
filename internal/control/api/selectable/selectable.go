// Package selectable says which fields of a built-in object a field selector
// may name, and what values an object has there.
//
// The two halves agree: each key that AddToScheme accepts is one that Attrs
// fills (tests hold them to it), apart from the pod's status.podIPs, which
// clients may send and which is empty on every pod.
package selectable

import (
	"fmt"

	batch "k8s.io/api/batch/v1"
	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

const (
	nameKey      = "metadata.name"
	namespaceKey = "metadata.namespace"
)

// selectableKind is one row: a kind, the keys a client may send beside name and
// namespace, the old spellings that stand for them, and how to read the values.
// Kinds without a row know metadata.name and metadata.namespace only, which is
// what a scheme does by itself.
type selectableKind struct {
	gvk      schema.GroupVersionKind
	resource string
	keys     []string
	alias    map[string]string
	values   func(obj runtime.Object, set fields.Set) bool
}

var kinds = []selectableKind{
	{
		gvk: v1.SchemeGroupVersion.WithKind("Pod"), resource: "pods", values: podFields,
		keys: []string{"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
			"spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName"},
		alias: map[string]string{"spec.host": "spec.nodeName"},
	},
	{gvk: v1.SchemeGroupVersion.WithKind("Node"), resource: "nodes", values: nodeFields, keys: []string{"spec.unschedulable"}},
	{gvk: v1.SchemeGroupVersion.WithKind("Service"), resource: "services", values: serviceFields, keys: []string{"spec.clusterIP", "spec.type"}},
	{gvk: v1.SchemeGroupVersion.WithKind("Namespace"), resource: "namespaces", values: namespaceFields, keys: []string{"status.phase"}},
	{gvk: v1.SchemeGroupVersion.WithKind("Secret"), resource: "secrets", values: secretFields, keys: []string{"type"}},
	{gvk: v1.SchemeGroupVersion.WithKind("ReplicationController"), resource: "replicationcontrollers", values: controllerFields, keys: []string{"status.replicas"}},
	{gvk: batch.SchemeGroupVersion.WithKind("Job"), resource: "jobs", values: jobFields, keys: []string{"status.successful"}},
	{gvk: certificates.SchemeGroupVersion.WithKind("CertificateSigningRequest"), resource: "certificatesigningrequests", values: csrFields, keys: []string{"spec.signerName"}},
	{gvk: certificates.SchemeGroupVersion.WithKind("ClusterTrustBundle"), resource: "clustertrustbundles", values: bundleFields, keys: []string{"spec.signerName"}},
	{gvk: certificates.SchemeGroupVersion.WithKind("PodCertificateRequest"), resource: "podcertificaterequests", values: podCertificateFields,
		keys: []string{"spec.signerName", "spec.podName", "spec.nodeName"}},
	{gvk: resource.SchemeGroupVersion.WithKind("ResourceSlice"), resource: "resourceslices", values: sliceFields, keys: []string{"spec.nodeName", "spec.driver"}},
	{
		gvk: v1.SchemeGroupVersion.WithKind("Event"), resource: "events", values: eventFields,
		keys: []string{"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
			"reason", "reportingComponent", "source", "type"},
	},
	{
		// The newer group names the same values differently; stored events
		// carry them under the core names.
		gvk: events.SchemeGroupVersion.WithKind("Event"), resource: "events", values: eventFields,
		keys: []string{"reason", "type"},
		alias: map[string]string{
			"regarding.kind": "involvedObject.kind", "regarding.namespace": "involvedObject.namespace",
			"regarding.name": "involvedObject.name", "regarding.uid": "involvedObject.uid",
			"regarding.apiVersion": "involvedObject.apiVersion", "regarding.resourceVersion": "involvedObject.resourceVersion",
			"regarding.fieldPath": "involvedObject.fieldPath", "reportingController": "reportingComponent",
		},
	},
}

// AddToScheme registers with s, kind by kind, which field selector keys are
// accepted. Any other key is refused with `field label not supported: <key>`.
func AddToScheme(s *runtime.Scheme) error {
	for _, k := range kinds {
		if err := s.AddFieldLabelConversionFunc(k.gvk, k.convert()); err != nil {
			return fmt.Errorf("registering the selectable fields of %s: %w", k.gvk, err)
		}
	}
	return nil
}

func (k selectableKind) convert() runtime.FieldLabelConversionFunc {
	accepted := map[string]string{nameKey: nameKey, namespaceKey: namespaceKey}
	for _, key := range k.keys {
		accepted[key] = key
	}
	for old, key := range k.alias {
		accepted[old] = key
	}
	return func(label, value string) (string, string, error) {
		key, ok := accepted[label]
		if !ok {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return key, value, nil
	}
}

// Attrs returns the function that reads an object's labels and selectable
// fields. A resource without a row above gets name and namespace. The function
// fails for an object without metadata and for one of another kind than gr.
func Attrs(gr schema.GroupResource) storage.AttrFunc {
	var values func(runtime.Object, fields.Set) bool
	size := 2
	for _, k := range kinds {
		if k.gvk.Group == gr.Group && k.resource == gr.Resource {
			values = k.values
			size += len(k.keys)
		}
	}
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, nil, fmt.Errorf("reading selectable fields of %s: %w", gr, err)
		}
		set := make(fields.Set, size)
		set[nameKey] = m.GetName()
		set[namespaceKey] = m.GetNamespace()
		if values != nil && !values(obj, set) {
			return nil, nil, fmt.Errorf("reading selectable fields of %s: got a %T", gr, obj)
		}
		return m.GetLabels(), set, nil
	}
}
