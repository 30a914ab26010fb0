package nodelink

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// RegisterOptions teaches a scheme to read the options of the streaming and proxying subresources from a query string.
// Without it the server cannot decode them. Unknown keys are ignored, as with every option.
func RegisterOptions(s *runtime.Scheme) error {
	readers := map[any]func(q *query, out any){
		(*v1.PodLogOptions)(nil): func(q *query, out any) {
			o := out.(*v1.PodLogOptions)
			o.Container, o.Follow, o.Previous = q.text("container"), q.flag("follow"), q.flag("previous")
			o.Timestamps, o.InsecureSkipTLSVerifyBackend = q.flag("timestamps"), q.flag("insecureSkipTLSVerifyBackend")
			o.SinceSeconds, o.TailLines, o.LimitBytes = q.number("sinceSeconds"), q.number("tailLines"), q.number("limitBytes")
			o.SinceTime = q.time("sinceTime")
			if text := q.text("stream"); text != "" {
				o.Stream = &text
			}
		},
		(*v1.PodExecOptions)(nil): func(q *query, out any) {
			o := out.(*v1.PodExecOptions)
			o.Container, o.Command = q.text("container"), slices.Clone(q.values["command"])
			o.Stdin, o.Stdout, o.Stderr, o.TTY = q.flag("stdin"), q.flag("stdout"), q.flag("stderr"), q.flag("tty")
		},
		(*v1.PodAttachOptions)(nil): func(q *query, out any) {
			o := out.(*v1.PodAttachOptions)
			o.Container = q.text("container")
			o.Stdin, o.Stdout, o.Stderr, o.TTY = q.flag("stdin"), q.flag("stdout"), q.flag("stderr"), q.flag("tty")
		},
		(*v1.PodPortForwardOptions)(nil): func(q *query, out any) {
			out.(*v1.PodPortForwardOptions).Ports = q.ports("ports")
		},
		(*v1.PodProxyOptions)(nil):     func(q *query, out any) { out.(*v1.PodProxyOptions).Path = q.text("path") },
		(*v1.NodeProxyOptions)(nil):    func(q *query, out any) { out.(*v1.NodeProxyOptions).Path = q.text("path") },
		(*v1.ServiceProxyOptions)(nil): func(q *query, out any) { out.(*v1.ServiceProxyOptions).Path = q.text("path") },
	}
	for to, read := range readers {
		err := s.AddConversionFunc((*url.Values)(nil), to, func(in, out any, _ conversion.Scope) error {
			q := &query{values: *in.(*url.Values)}
			read(q, out)
			return q.err
		})
		if err != nil {
			return fmt.Errorf("registering options %T: %w", to, err)
		}
	}
	return nil
}

// query reads typed values and keeps the first error.
type query struct {
	values url.Values
	err    error
}

func (q *query) text(key string) string { return q.values.Get(key) }

// flag follows the API: a key that is present without a value, or with anything but false and 0, is true.
func (q *query) flag(key string) bool {
	v, ok := q.values[key]
	if !ok || len(v) == 0 {
		return false
	}
	return v[0] != "false" && v[0] != "0"
}

func (q *query) number(key string) *int64 {
	text := q.values.Get(key)
	if text == "" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		q.fail(key, text, "an integer")
		return nil
	}
	return &n
}

func (q *query) time(key string) *metav1.Time {
	text := q.values.Get(key)
	if text == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		q.fail(key, text, "an RFC 3339 time")
		return nil
	}
	return &metav1.Time{Time: t}
}

func (q *query) ports(key string) []int32 {
	var out []int32
	for _, text := range q.values[key] {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			q.fail(key, text, "a port number")
			return nil
		}
		out = append(out, int32(n))
	}
	return out
}

func (q *query) fail(key, text, want string) {
	if q.err == nil {
		q.err = fmt.Errorf("reading query parameter %s: %q is not %s", key, text, want)
	}
}
