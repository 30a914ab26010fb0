package pods

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
)

// logREST streams a container's log from its agent: GET pods/{name}/log.
type logREST struct{ *looker }

func (r *logREST) New() runtime.Object { return &v1.Pod{} }
func (r *logREST) Destroy()            {}

// ProducesMIMETypes and ProducesObject document the endpoint in OpenAPI as text.
func (r *logREST) ProducesMIMETypes(string) []string { return []string{"text/plain"} }
func (r *logREST) ProducesObject(string) any         { return "" }

func (r *logREST) NewGetOptions() (runtime.Object, bool, string) {
	return &v1.PodLogOptions{}, false, ""
}

// Get returns a stream that the server copies to the client, flushed as it
// comes when following. A pod without a node has an empty log rather than an
// error.
func (r *logREST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*v1.PodLogOptions)
	if !ok {
		return nil, wrongOptions(options)
	}
	if errs := checkLogOptions(o); len(errs) > 0 {
		return nil, apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), name, errs)
	}
	container := o.Container
	pod, link, err := r.agentOf(ctx, name, &container)
	if err != nil {
		return nil, err
	}
	stream := &genericrest.LocationStreamer{
		ContentType:     "text/plain",
		Flush:           o.Follow,
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(v1.Resource("pods/log"), name),
		RedirectChecker: genericrest.PreventRedirects,
	}
	if link != nil {
		stream.Location = link.URL(fmt.Sprintf("/containerLogs/%s/%s/%s", pod.Namespace, pod.Name, container), logQuery(o))
		stream.Transport = link.Transport
		if o.InsecureSkipTLSVerifyBackend {
			stream.Transport = link.Insecure
		}
	}
	return stream, nil
}

// OverrideMetricsVerb keeps endless followers out of the latency of plain reads.
func (r *logREST) OverrideMetricsVerb(old string) string {
	if old == "GET" {
		return "CONNECT"
	}
	return old
}

func checkLogOptions(o *v1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	if o.Stream != nil && *o.Stream != v1.LogStreamAll {
		errs = append(errs, field.Forbidden(field.NewPath("stream"), "may not be specified"))
	}
	return errs
}

func logQuery(o *v1.PodLogOptions) url.Values {
	q := url.Values{}
	flags := map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps}
	for name, on := range flags {
		if on {
			q.Set(name, "true")
		}
	}
	numbers := map[string]*int64{"sinceSeconds": o.SinceSeconds, "tailLines": o.TailLines, "limitBytes": o.LimitBytes}
	for name, n := range numbers {
		if n != nil {
			q.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if o.SinceTime != nil {
		q.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	return q
}
