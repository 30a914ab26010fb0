package serve

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/agent/serve/logs"
)

// statusError is an answer with its HTTP code.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

func failf(code int, format string, args ...any) error {
	return &statusError{code: code, text: fmt.Sprintf(format, args...)}
}

func writeError(w http.ResponseWriter, err error) {
	var status *statusError
	if errors.As(err, &status) {
		http.Error(w, status.text, status.code)
		return
	}
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

func (s *server) containerLogs(w http.ResponseWriter, req *http.Request) {
	options, err := logOptions(req)
	if err != nil {
		writeError(w, err)
		return
	}
	namespace, name, container := req.PathValue("namespace"), req.PathValue("pod"), req.PathValue("container")
	pod, ok := s.cfg.Pods.Get(namespace, name)
	if !ok {
		writeError(w, failf(http.StatusNotFound, "pod %q does not exist", name))
		return
	}
	if !specHas(pod, container) {
		writeError(w, failf(http.StatusNotFound, "container %q not found in pod %q", container, name))
		return
	}
	id, running, err := logSource(pod, container, options.Previous)
	if err != nil {
		writeError(w, err)
		return
	}
	status, err := s.cfg.Runtime.ContainerStatus(req.Context(), id, false)
	if err != nil {
		writeError(w, failf(http.StatusInternalServerError, "finding the log of container %q in pod %q: %v", container, name, err))
		return
	}
	read := readOptions(options, time.Now())
	if options.Follow && running {
		read.Exited = s.cfg.Pods.Exited(req.Context(), id)
	}
	out := &flushWriter{ResponseWriter: w}
	w.Header().Set("Content-Type", "text/plain")
	if err := logs.Read(req.Context(), status.GetStatus().GetLogPath(), read, out); err != nil {
		if !out.wrote {
			writeError(w, err)
			return
		}
		s.cfg.Log.Debug("sending a container log", "namespace", namespace, "pod", name, "container", container, "err", err)
	}
}

// flushWriter notes whether anything was sent, after which the code is fixed.
type flushWriter struct {
	http.ResponseWriter
	wrote bool
}

func (f *flushWriter) Write(text []byte) (int, error) {
	f.wrote = true
	return f.ResponseWriter.Write(text)
}

// Flush sends what was written on its way; with nothing written it sends the
// headers, so that a follower of a silent container sees the stream begin.
func (f *flushWriter) Flush() {
	f.wrote = true
	_ = http.NewResponseController(f.ResponseWriter).Flush()
}

// logOptions reads and checks the query. The legacy parameter "tail" is
// understood as tailLines.
func logOptions(req *http.Request) (*v1.PodLogOptions, error) {
	query := req.URL.Query()
	if tail := query.Get("tail"); tail != "" {
		if tail == "all" {
			query.Del("tailLines")
		} else {
			query.Set("tailLines", tail)
		}
	}
	options := &v1.PodLogOptions{
		Follow:     readBool(query, "follow"),
		Previous:   readBool(query, "previous"),
		Timestamps: readBool(query, "timestamps"),
	}
	for _, read := range []error{
		readInt(query, "tailLines", &options.TailLines),
		readInt(query, "limitBytes", &options.LimitBytes),
		readInt(query, "sinceSeconds", &options.SinceSeconds),
	} {
		if read != nil {
			return nil, failf(http.StatusBadRequest, "unable to decode query: %v", read)
		}
	}
	if text := query.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, failf(http.StatusBadRequest, "unable to decode query: sinceTime: %v", err)
		}
		since := metav1.NewTime(at)
		options.SinceTime = &since
	}
	if text := query.Get("stream"); text != "" {
		options.Stream = &text
	}
	var wrong []string
	check := func(bad bool, text string) {
		if bad {
			wrong = append(wrong, text)
		}
	}
	check(options.TailLines != nil && *options.TailLines < 0, "tailLines must not be negative")
	check(options.LimitBytes != nil && *options.LimitBytes < 1, "limitBytes must be at least 1")
	check(options.SinceSeconds != nil && *options.SinceSeconds < 1, "sinceSeconds must be at least 1")
	check(options.SinceSeconds != nil && options.SinceTime != nil, "only one of sinceSeconds and sinceTime may be given")
	if options.Stream != nil {
		switch *options.Stream {
		case v1.LogStreamAll:
		case v1.LogStreamStdout, v1.LogStreamStderr:
			check(options.TailLines != nil, "tailLines cannot be combined with one stream")
		default:
			check(true, "stream must be All, Stdout or Stderr")
		}
	}
	if len(wrong) > 0 {
		return nil, failf(http.StatusUnprocessableEntity, "Invalid request. %s", strings.Join(wrong, "; "))
	}
	return options, nil
}

func readBool(query url.Values, name string) bool {
	values, ok := query[name]
	if !ok {
		return false
	}
	// Like the API machinery: a bare "?follow" means yes, and so does any
	// value but a spelling of no.
	switch strings.ToLower(values[0]) {
	case "false", "0":
		return false
	}
	return true
}

func readInt(query url.Values, name string, into **int64) error {
	text := query.Get(name)
	if text == "" {
		return nil
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%s: %q is no number", name, text)
	}
	*into = &value
	return nil
}

func readOptions(options *v1.PodLogOptions, now time.Time) logs.Options {
	read := logs.Options{Follow: options.Follow, Tail: -1, Limit: -1, Timestamps: options.Timestamps}
	if options.TailLines != nil {
		read.Tail = *options.TailLines
	}
	if options.LimitBytes != nil {
		read.Limit = *options.LimitBytes
	}
	switch {
	case options.SinceTime != nil:
		read.Since = options.SinceTime.Time
	case options.SinceSeconds != nil:
		read.Since = now.Add(-time.Duration(*options.SinceSeconds) * time.Second)
	}
	if options.Stream != nil {
		read.Stdout = *options.Stream == v1.LogStreamStdout
		read.Stderr = *options.Stream == v1.LogStreamStderr
	}
	return read
}

func specHas(pod *v1.Pod, container string) bool {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == container {
				return true
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == container {
			return true
		}
	}
	return false
}

// logSource picks the container whose log to show and tells whether it still
// runs: the current instance, or the one before it.
func logSource(pod *v1.Pod, name string, previous bool) (id string, running bool, err error) {
	status := containerStatus(pod, name)
	if status == nil {
		return "", false, failf(http.StatusBadRequest, "container %q in pod %q is not available", name, pod.Name)
	}
	last := ""
	if status.LastTerminationState.Terminated != nil {
		last = status.LastTerminationState.Terminated.ContainerID
	}
	switch {
	case previous && last == "":
		return "", false, failf(http.StatusBadRequest, "previous terminated container %q in pod %q not found", name, pod.Name)
	case previous:
		return bareID(last), false, nil
	case status.State.Running != nil:
		id, running = status.ContainerID, true
	case status.State.Terminated != nil && status.State.Terminated.ContainerID != "":
		id = status.State.Terminated.ContainerID
	case last != "":
		id = last
	case status.State.Waiting != nil && (status.State.Waiting.Reason == "ErrImagePull" ||
		status.State.Waiting.Reason == "ImagePullBackOff"):
		return "", false, failf(http.StatusBadRequest, "container %q in pod %q is waiting to start: %s", name, pod.Name, map[string]string{
			"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}[status.State.Waiting.Reason])
	case status.State.Waiting != nil:
		return "", false, failf(http.StatusBadRequest, "container %q in pod %q is waiting to start: %s", name, pod.Name,
			status.State.Waiting.Reason)
	}
	if id == "" {
		return "", false, failf(http.StatusBadRequest, "container %q in pod %q is not available", name, pod.Name)
	}
	return bareID(id), running, nil
}

func containerStatus(pod *v1.Pod, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses,
		pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// bareID takes the runtime's name off a container ID ("containerd://abc").
func bareID(id string) string {
	if _, bare, ok := strings.Cut(id, "://"); ok {
		return bare
	}
	return id
}
