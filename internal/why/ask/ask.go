// Package ask reads what an explanation needs, with the rights of the caller,
// and has internal/why explain it. It writes nothing.
package ask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/why"
)

// timeout bounds one answer. A server that needs longer counts as down.
const timeout = 10 * time.Second

// pageSize bounds lists: an answer needs examples, not all of 100,000 pods.
const pageSize = 500

// resource is where a kind lives.
type resource struct {
	path string // of its group and version
	name string
	// one makes an object to decode into.
	one func() metav1.Object
}

func of[T any, P interface {
	*T
	metav1.Object
}]() func() metav1.Object {
	return func() metav1.Object { return P(new(T)) }
}

// metadata marks kinds of which only the metadata is read: no Secret's content
// reaches this process.
var metadata = of[metav1.PartialObjectMetadata]()

var resources = map[string]resource{
	"Pod":                     {"/api/v1", "pods", of[v1.Pod]()},
	"Node":                    {"/api/v1", "nodes", of[v1.Node]()},
	"Event":                   {"/api/v1", "events", of[v1.Event]()},
	"Service":                 {"/api/v1", "services", of[v1.Service]()},
	"Namespace":               {"/api/v1", "namespaces", of[v1.Namespace]()},
	"PersistentVolumeClaim":   {"/api/v1", "persistentvolumeclaims", of[v1.PersistentVolumeClaim]()},
	"PersistentVolume":        {"/api/v1", "persistentvolumes", of[v1.PersistentVolume]()},
	"Secret":                  {"/api/v1", "secrets", metadata},
	"Deployment":              {"/apis/apps/v1", "deployments", of[appsv1.Deployment]()},
	"ReplicaSet":              {"/apis/apps/v1", "replicasets", of[appsv1.ReplicaSet]()},
	"StatefulSet":             {"/apis/apps/v1", "statefulsets", of[appsv1.StatefulSet]()},
	"DaemonSet":               {"/apis/apps/v1", "daemonsets", of[appsv1.DaemonSet]()},
	"Job":                     {"/apis/batch/v1", "jobs", of[batchv1.Job]()},
	"CronJob":                 {"/apis/batch/v1", "cronjobs", of[batchv1.CronJob]()},
	"HorizontalPodAutoscaler": {"/apis/autoscaling/v2", "horizontalpodautoscalers", of[autoscalingv2.HorizontalPodAutoscaler]()},
	"CertificateSigningRequest": {"/apis/certificates.k8s.io/v1", "certificatesigningrequests",
		of[certificatesv1.CertificateSigningRequest]()},
	"Lease":               {"/apis/coordination.k8s.io/v1", "leases", of[coordinationv1.Lease]()},
	"EndpointSlice":       {"/apis/discovery.k8s.io/v1", "endpointslices", of[discoveryv1.EndpointSlice]()},
	"NetworkPolicy":       {"/apis/networking.k8s.io/v1", "networkpolicies", of[networkingv1.NetworkPolicy]()},
	"Ingress":             {"/apis/networking.k8s.io/v1", "ingresses", of[networkingv1.Ingress]()},
	"IngressClass":        {"/apis/networking.k8s.io/v1", "ingressclasses", of[networkingv1.IngressClass]()},
	"PodDisruptionBudget": {"/apis/policy/v1", "poddisruptionbudgets", of[policyv1.PodDisruptionBudget]()},
	"StorageClass":        {"/apis/storage.k8s.io/v1", "storageclasses", of[storagev1.StorageClass]()},
	"APIService":          {"/apis/apiregistration.k8s.io/v1", "apiservices", of[apiregistrationv1.APIService]()},
}

// Config is where an answer comes from.
type Config struct {
	// Client is the API with the caller's rights. APIError is set instead if
	// there is none.
	Client   *rest.Config
	APIError error
	// Records returns the journal's decisions about an object; nil where there
	// is no journal.
	Records func(ctx context.Context, ref journal.Ref) ([]journal.Record, error)
	// Host returns what is not well on this host. It is asked while the API does
	// not answer; nil where there is nothing to ask.
	Host func(ctx context.Context) []journal.Fact
	// Now is the time of the question.
	Now time.Time
}

// Why answers a question about an object.
func Why(ctx context.Context, cfg Config, ref journal.Ref) (why.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	w := &why.World{Now: cfg.Now, Subject: ref, Done: map[why.Read]string{}, Absent: map[why.Read]bool{}, Logs: map[string]string{}}
	r := &reader{w: w}
	records := make(chan struct{})
	var journalError error
	go func() {
		defer close(records)
		if cfg.Records != nil {
			w.Records, journalError = cfg.Records(ctx, ref)
		}
	}()
	err := cfg.APIError
	if err == nil {
		err = r.connect(cfg.Client)
	}
	for round := 0; err == nil && round < why.Rounds; round++ {
		next := why.Next(w)
		if len(next) == 0 {
			break
		}
		err = r.readAll(ctx, next)
	}
	if err != nil {
		w.APIError = err.Error()
		w.Objects = nil
		if cfg.Host != nil {
			w.Host = cfg.Host(ctx)
		}
	}
	<-records
	a := why.Explain(w)
	if journalError != nil && cfg.Records != nil {
		a.Unread = append(a.Unread, "journal: "+journalError.Error())
	}
	return a, nil
}

// reader performs requests. mu guards w while several run.
type reader struct {
	base   *url.URL
	client *http.Client

	mu sync.Mutex
	w  *why.World
	// down is why the API does not answer at all.
	down error
}

func (r *reader) connect(cfg *rest.Config) (err error) {
	if r.client, err = rest.HTTPClientFor(cfg); err != nil {
		return fmt.Errorf("using the kubeconfig: %w", err)
	}
	r.base, _, err = rest.DefaultServerUrlFor(cfg)
	return err
}

// readAll performs requests at the same time. It fails only if the API does not
// answer; what one request may not read is noted.
func (r *reader) readAll(ctx context.Context, reads []why.Read) error {
	var wg sync.WaitGroup
	for _, read := range reads {
		wg.Go(func() { r.note(read, r.read(ctx, read)) })
	}
	wg.Wait()
	return r.down
}

// statusError is a refusal of the API server.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// note keeps how a request ended.
func (r *reader) note(read why.Read, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var refused *statusError
	switch {
	case err == nil:
		r.w.Done[read] = ""
	case errors.As(err, &refused) && refused.code == http.StatusNotFound:
		if read.Name != "" && read.Container == "" {
			r.w.Absent[read] = true
			return
		}
		r.w.Done[read] = "not found"
	case errors.As(err, &refused) && (refused.code < 500 || read.Container != "" || strings.HasPrefix(read.Kind, why.ResourcePrefix)):
		r.w.Done[read] = refused.text
	case read.Container != "":
		r.w.Done[read] = err.Error()
	default:
		r.w.Done[read] = err.Error()
		r.down = err
	}
}

// read performs one request.
func (r *reader) read(ctx context.Context, read why.Read) error {
	if resource, ok := strings.CutPrefix(read.Kind, why.ResourcePrefix); ok {
		return r.anyResource(ctx, resource, read.Namespace)
	}
	res, ok := resources[read.Kind]
	if !ok {
		return &statusError{http.StatusBadRequest, "berth why does not know where " + read.Kind + " lives"}
	}
	path := res.path
	if read.Namespace != "" {
		path += "/namespaces/" + read.Namespace
	}
	path += "/" + res.name
	q := url.Values{}
	if read.Container != "" {
		return r.log(ctx, path+"/"+read.Name+"/log", read.Container)
	}
	if read.Name != "" {
		o := res.one()
		if err := r.get(ctx, path+"/"+read.Name, q, res, o); err != nil {
			return err
		}
		r.add(o)
		return nil
	}
	q.Set("limit", fmt.Sprint(pageSize))
	// From the server's memory, not from its store: an answer need not be newer
	// than what the controllers see.
	q.Set("resourceVersion", "0")
	if read.Labels != "" {
		q.Set("labelSelector", read.Labels)
	}
	if read.Fields != "" {
		q.Set("fieldSelector", read.Fields)
	}
	return r.list(ctx, path, q, res)
}

func (r *reader) list(ctx context.Context, path string, q url.Values, res resource) error {
	var list struct {
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := r.get(ctx, path, q, res, &list); err != nil {
		return err
	}
	for _, raw := range list.Items {
		o := res.one()
		kind := kindOf(o)
		if err := json.Unmarshal(raw, o); err != nil {
			return fmt.Errorf("decoding %s: %w", path, err)
		}
		if m, ok := o.(*metav1.PartialObjectMetadata); ok && kind != "" {
			m.Kind = kind
		}
		r.add(o)
	}
	if list.Continue != "" {
		return &statusError{http.StatusPartialContent, fmt.Sprintf("only the first %d were read", len(list.Items))}
	}
	return nil
}

// kindOf is the kind of an object of which only the metadata is read.
func kindOf(o metav1.Object) string {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		return m.Kind
	}
	return ""
}

// add keeps an object once, whichever request brought it.
func (r *reader) add(o metav1.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, have := range r.w.Objects {
		if have.GetUID() == o.GetUID() && o.GetUID() != "" {
			return
		}
	}
	r.w.Objects = append(r.w.Objects, o)
}

// get performs a request and decodes its answer.
func (r *reader) get(ctx context.Context, path string, q url.Values, res resource, into any) error {
	accept := "application/json"
	if _, ok := res.one().(*metav1.PartialObjectMetadata); ok {
		kind := "PartialObjectMetadata"
		if q.Has("limit") {
			kind += "List"
		}
		accept += ";as=" + kind + ";g=meta.k8s.io;v=v1"
	}
	body, err := r.request(ctx, path, q, accept)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decoding %s: %w", path, err)
	}
	return nil
}

// maxBody bounds one answer of the API.
const maxBody = 64 << 20

func (r *reader) request(ctx context.Context, path string, q url.Values, accept string) ([]byte, error) {
	u := *r.base
	u.Path = strings.TrimSuffix(u.Path, "/") + path
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	resp, err := r.client.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return nil, op
		}
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		var st metav1.Status
		if json.Unmarshal(body, &st) != nil || st.Message == "" {
			st.Message = fmt.Sprintf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
		}
		return nil, &statusError{resp.StatusCode, st.Message}
	}
	return body, nil
}

// log keeps the last line of a container's last instance.
func (r *reader) log(ctx context.Context, path, container string) error {
	read := func(previous string) (string, error) {
		q := url.Values{"container": {container}, "tailLines": {"3"}, "limitBytes": {"4096"}, "previous": {previous}}
		body, err := r.request(ctx, path, q, "*/*")
		lines := strings.Split(strings.TrimSpace(string(body)), "\n")
		return lines[len(lines)-1], err
	}
	line, err := read("true")
	if err != nil {
		line, err = read("false")
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.w.Logs[container] = line
	return nil
}

// anyResource reads the metadata of a resource of any group, in the version its
// group prefers.
func (r *reader) anyResource(ctx context.Context, name, namespace string) error {
	plural, group, grouped := strings.Cut(name, ".")
	path := "/api/v1"
	if grouped {
		var g metav1.APIGroup
		if err := r.get(ctx, "/apis/"+group, nil, resource{one: of[v1.Pod]()}, &g); err != nil {
			return err
		}
		path = "/apis/" + g.PreferredVersion.GroupVersion
	}
	// Items of such a list do not tell their own kind: the discovery does.
	var known metav1.APIResourceList
	if err := r.get(ctx, path, nil, resource{one: of[v1.Pod]()}, &known); err != nil {
		return err
	}
	kind := plural
	for _, k := range known.APIResources {
		if k.Name == plural {
			kind = k.Kind
		}
	}
	named := func() metav1.Object { return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: kind}} }
	return r.list(ctx, path+"/namespaces/"+namespace+"/"+plural, url.Values{"limit": {"50"}}, resource{one: named})
}
