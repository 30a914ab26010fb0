package manifests

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/record"
)

// recordLabel marks the ConfigMaps that hold records.
const recordLabel = "berth.dev/manifest-record"

// Config is what a Manager is made of. All fields are required.
type Config struct {
	Dir, Node string
	// Client is the configuration of a client that acts as the manifests' own
	// user.
	Client *rest.Config
	// Events are recorded as that user too.
	Events func(client kubernetes.Interface) record.EventRecorder
	Log    *slog.Logger
}

// New returns a Manager that Run starts.
func New(cfg Config) (*Manager, error) {
	json := rest.CopyConfig(cfg.Client)
	json.ContentType, json.AcceptContentTypes = "application/json", "application/json"
	client, err := kubernetes.NewForConfig(json)
	if err != nil {
		return nil, fmt.Errorf("making the client of the manifests: %w", err)
	}
	c := &cluster{client: client, events: cfg.Events(client)}
	return &Manager{dir: cfg.Dir, node: cfg.Node, api: c, log: cfg.Log, now: time.Now, applied: map[objectRef]string{},
		status: Status{Dir: cfg.Dir, Waiting: true}}, nil
}

// cluster is api over HTTP. One goroutine uses it.
type cluster struct {
	client kubernetes.Interface
	events record.EventRecorder
	once   sync.Once
	mapper *restmapper.DeferredDiscoveryRESTMapper
	// refreshed is true once discovery was read again in this round.
	refreshed bool
}

func (c *cluster) maps() *restmapper.DeferredDiscoveryRESTMapper {
	c.once.Do(func() {
		c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.client.Discovery()))
	})
	return c.mapper
}

// path is where an object is served.
func (c *cluster) path(ref objectRef, version string) (string, error) {
	gk := schema.GroupKind{Group: ref.Group, Kind: ref.Kind}
	var versions []string
	if version != "" {
		versions = []string{version}
	}
	m, err := c.maps().RESTMapping(gk, versions...)
	if meta.IsNoMatchError(err) && !c.refreshed { // a CustomResourceDefinition may have come
		c.maps().Reset()
		c.refreshed = true
		m, err = c.maps().RESTMapping(gk, versions...)
	}
	if err != nil {
		return "", err
	}
	parts := []string{"/apis", m.Resource.Group, m.Resource.Version}
	if m.Resource.Group == "" {
		parts = []string{"/api", m.Resource.Version}
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		parts = append(parts, "namespaces", cmp.Or(ref.Namespace, metav1.NamespaceDefault))
	} else if ref.Namespace != "" {
		return "", &wrongField{"metadata.namespace", "objects of this kind are in no namespace", "remove the field"}
	}
	return strings.Join(append(parts, m.Resource.Resource, ref.Name), "/"), nil
}

// wrongField is a fault of a document that is found on this side.
type wrongField struct{ field, message, remedy string }

func (w *wrongField) Error() string { return w.field + ": " + w.message + ": " + w.remedy }

func (c *cluster) rest() rest.Interface { return c.client.CoreV1().RESTClient() }

func (c *cluster) live(ctx context.Context, ref objectRef) (l liveObject, ok bool, err error) {
	path, err := c.path(ref, "")
	var wrong *wrongField
	if meta.IsNoMatchError(err) || errors.As(err, &wrong) {
		return l, false, nil
	}
	if err != nil {
		return l, false, err
	}
	raw, err := c.rest().Get().AbsPath(path).SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").
		DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return l, false, nil
	}
	var o metav1.PartialObjectMetadata
	if err == nil {
		err = json.Unmarshal(raw, &o)
	}
	if err != nil {
		return l, false, err
	}
	return liveOf(&o), true, nil
}

func liveOf(o *metav1.PartialObjectMetadata) liveObject {
	_, keep := o.Annotations[KeepAnnotation]
	return liveObject{UID: string(o.UID), Keep: keep, Prune: o.Annotations[PruneAnnotation] == "true", Created: o.CreationTimestamp.Time,
		Managed: slices.ContainsFunc(o.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
			return f.Manager == FieldManager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == ""
		})}
}

func (c *cluster) apply(ctx context.Context, item change) (uid string, created bool, err error) {
	path, err := c.path(item.objectRef, item.Version)
	if err != nil {
		return "", false, err
	}
	var u unstructured.Unstructured
	if err := json.Unmarshal(item.Body, &u.Object); err != nil {
		return "", false, err
	}
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[fileAnnotation] = item.File
	u.SetAnnotations(annotations)
	body, err := json.Marshal(u.Object)
	if err != nil {
		return "", false, err
	}
	var code int
	result := c.rest().Patch(types.ApplyPatchType).AbsPath(path).Param("fieldManager", FieldManager).Param("force", "true").
		Param("fieldValidation", metav1.FieldValidationStrict).SetHeader("Accept", "application/json").Body(body).Do(ctx).StatusCode(&code)
	raw, err := result.Raw()
	if err != nil {
		return "", false, result.Error()
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(raw, &o); err != nil {
		return "", false, err
	}
	if item.Kind == "CustomResourceDefinition" {
		c.refreshed = false
	}
	return string(o.UID), code == http.StatusCreated, nil
}

func (c *cluster) remove(ctx context.Context, ref objectRef, uid string) error {
	path, err := c.path(ref, "")
	if err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	err = c.rest().Delete().AbsPath(path).Body(&metav1.DeleteOptions{
		Preconditions: metav1.NewUIDPreconditions(uid), PropagationPolicy: &background}).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *cluster) records(ctx context.Context) (out []fileRecord, damaged []docFault, err error) {
	c.refreshed = false
	list, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: recordLabel})
	if err != nil {
		return nil, nil, fmt.Errorf("listing the records of manifests: %w", err)
	}
	for _, cm := range list.Items {
		r := fileRecord{File: cm.Data["file"], Node: cm.Data["server"]}
		if err := json.Unmarshal([]byte(cm.Data["objects"]), &r.Entries); err != nil || cm.Name != recordName(r.File) {
			damaged = append(damaged, docFault{File: cmp.Or(r.File, cm.Name), Object: "ConfigMap kube-system/" + cm.Name,
				Message: "the record of the file's objects cannot be read", Remedy: "delete it; objects that left the file meanwhile stay"})
			continue
		}
		out = append(out, r)
	}
	return out, damaged, nil
}

func (c *cluster) save(ctx context.Context, r fileRecord) error {
	maps := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	if len(r.Entries) == 0 {
		err := maps.Delete(ctx, recordName(r.File), metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	objects, err := json.Marshal(r.Entries)
	if err != nil {
		return err
	}
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: recordName(r.File), Labels: map[string]string{recordLabel: "true"}},
		Data: map[string]string{"file": r.File, "server": r.Node, "objects": string(objects)}}
	_, err = maps.Update(ctx, cm, metav1.UpdateOptions{FieldManager: FieldManager})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, cm, metav1.CreateOptions{FieldManager: FieldManager})
	}
	return err
}

func (c *cluster) tell(file string, warning bool, reason, message string) {
	kind := v1.EventTypeNormal
	if warning {
		kind = v1.EventTypeWarning
	}
	about := &v1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: recordName(file)}}
	c.events.Event(about, kind, reason, message)
}

// explain makes a fault of what the API server answered.
func explain(item change, err error) docFault {
	f := docFault{File: item.File, Document: item.Number, Object: item.objectRef.String(), Message: oneLine(err)}
	var wrong *wrongField
	var answer apierrors.APIStatus
	switch {
	case errors.As(err, &wrong):
		f.Field, f.Message, f.Remedy = wrong.field, wrong.message, wrong.remedy
	case meta.IsNoMatchError(err):
		f.Field = "apiVersion, kind"
		f.Message = "this cluster does not serve " + schema.GroupVersionKind{Group: item.Group, Version: item.Version,
			Kind: item.Kind}.String()
		f.Remedy = "install its CustomResourceDefinition, or correct the field; it is tried again"
	case errors.As(err, &answer):
		if d := answer.Status().Details; d != nil && len(d.Causes) > 0 && d.Causes[0].Field != "" {
			f.Field, f.Message = d.Causes[0].Field, d.Causes[0].Message
			if more := len(d.Causes) - 1; more > 0 {
				f.Message += fmt.Sprintf(" (and %d more)", more)
			}
			f.Remedy = "correct the field"
		}
		if apierrors.IsNotFound(err) && item.Namespace != "" {
			f.Field, f.Remedy = "metadata.namespace", "make the namespace, in a manifest for example; it is tried again"
		}
	}
	return f
}
