package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/pod"
)

// Hooks runs lifecycle handlers.
type Hooks struct {
	Exec exec
	// Event reports a warning on a pod's container; nil reports nothing.
	Event func(pod *v1.Pod, container, reason, message string)
	// Fallbacks counts requests that meant HTTPS and were answered over HTTP;
	// nil counts none.
	Fallbacks prometheus.Counter
}

// Run performs one handler. A command has no time of its own: ctx ends it. An
// HTTP handler fails only if no answer comes; what the answer says is the
// pod's business.
func (h Hooks) Run(ctx context.Context, in pod.Hook) error {
	switch {
	case in.Handler.Exec != nil:
		out, code, err := h.Exec(ctx, in.ContainerID, in.Handler.Exec.Command, 0)
		if err != nil {
			return fmt.Errorf("running %q in container %q: %w", strings.Join(in.Handler.Exec.Command, " "), in.Container.Name, err)
		}
		if code != 0 {
			return fmt.Errorf("running %q in container %q: it exited with %d: %s", strings.Join(in.Handler.Exec.Command, " "),
				in.Container.Name, code, cut(out))
		}
		return nil
	case in.Handler.Sleep != nil:
		timer := time.NewTimer(time.Duration(in.Handler.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("sleeping in container %q: container terminated before sleep hook finished: %w", in.Container.Name, ctx.Err())
		}
	case in.Handler.HTTPGet != nil:
		return h.get(ctx, in)
	}
	return fmt.Errorf("container %q: the hook has no handler that can be run, allowed are exec, httpGet and sleep", in.Container.Name)
}

func (h Hooks) get(ctx context.Context, in pod.Hook) error {
	req, err := request(ctx, in.Container, in.PodIP, in.Handler.HTTPGet, "kube-lifecycle/1.37")
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport, CheckRedirect: stayOnHost}
	resp, err := client.Do(req)
	if err != nil && req.URL.Scheme == "https" && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		// A handler that says HTTPS and means HTTP worked once and must go on
		// working, but credentials do not go over an open line.
		plain := req.Clone(ctx)
		plain.URL.Scheme = "http"
		plain.Header.Del("Authorization")
		if h.Event != nil {
			h.Event(in.Pod, in.Container.Name, "LifecycleHTTPFallback",
				fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retried with HTTP", req.URL.Host))
		}
		resp, err = client.Do(plain)
		if err == nil && h.Fallbacks != nil {
			h.Fallbacks.Inc()
		}
	}
	if err != nil {
		return fmt.Errorf("asking %s: %w", req.URL.Host, err)
	}
	return errors.Join(resp.Body.Close())
}
