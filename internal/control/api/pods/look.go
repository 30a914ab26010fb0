package pods

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/berth-dev/berth/internal/control/api/nodelink"
)

// looker finds the agent that runs a pod; log, exec, attach and portforward go
// through it.
type looker struct {
	store *registry.Store
	deps  Deps
}

// agentOf returns the way to the pod's node, and the pod's container if the
// request is about one. A pod that no node runs has a nil link.
func (l *looker) agentOf(ctx context.Context, name string, container *string) (*v1.Pod, *nodelink.Link, error) {
	pod, err := getPod(ctx, l.store, name)
	if err != nil {
		return nil, nil, err
	}
	if container != nil {
		if *container, err = pickContainer(pod, *container); err != nil {
			return nil, nil, err
		}
	}
	if pod.Spec.NodeName == "" {
		return pod, nil, nil
	}
	link, err := l.deps.Nodes.Find(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, nil, fmt.Errorf("finding the agent of pod %s/%s on node %s: %w", pod.Namespace, pod.Name, pod.Spec.NodeName, err)
	}
	return pod, link, nil
}

// session is an endpoint that upgrades the connection and hands it to the
// agent: exec, attach and portforward.
type session struct {
	*looker
	options func() runtime.Object
	// dial returns the agent's URL for the request. With streams, a client that
	// speaks the websocket protocol v5 is translated to SPDY towards the agent;
	// without, its SPDY is tunnelled.
	dial func(ctx context.Context, l *looker, name string, options runtime.Object) (*url.URL, *nodelink.Link, *translator.Options, error)
}

// New is the kind that the endpoint shows in discovery and to webhooks.
func (s *session) New() runtime.Object { return s.options() }
func (s *session) Destroy()            {}

// ConnectMethods has GET for websockets and POST for SPDY.
func (s *session) ConnectMethods() []string { return []string{http.MethodGet, http.MethodPost} }

func (s *session) NewConnectOptions() (runtime.Object, bool, string) { return s.options(), false, "" }

func (s *session) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	if err := nodelink.MayCreate(ctx, s.deps.Authorizer); err != nil {
		return nil, err
	}
	location, link, streams, err := s.dial(ctx, s.looker, name, options)
	if err != nil {
		return nil, err
	}
	if link == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", name))
	}
	direct := proxy.NewUpgradeAwareHandler(location, link.Transport, false, true, proxy.NewErrorResponder(responder))
	if streams != nil {
		translated := translator.NewStreamTranslatorHandler(location, link.Transport, 0, *streams)
		return translator.NewTranslatingHandler(direct, translated, wsstream.IsWebSocketRequestWithStreamCloseProtocol), nil
	}
	return translator.NewTranslatingHandler(direct, translator.NewTunnelingHandler(direct),
		wsstream.IsWebSocketRequestWithTunnelingProtocol), nil
}

// wrongOptions answers a request whose options were decoded into something
// else; it points to a wiring mistake.
func wrongOptions(got runtime.Object) error {
	return apierrors.NewInternalError(fmt.Errorf("decoding the options of the subresource gave %T", got))
}

func newExec(l *looker) rest.Storage {
	return &session{looker: l, options: func() runtime.Object { return &v1.PodExecOptions{} }, dial: dialExec}
}

func dialExec(ctx context.Context, l *looker, name string, options runtime.Object) (*url.URL, *nodelink.Link, *translator.Options, error) {
	o, ok := options.(*v1.PodExecOptions)
	if !ok {
		return nil, nil, nil, wrongOptions(options)
	}
	streams := translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
	return dialStreams(ctx, l, "exec", name, o.Container, streams, o.Command)
}

func newAttach(l *looker) rest.Storage {
	return &session{looker: l, options: func() runtime.Object { return &v1.PodAttachOptions{} }, dial: dialAttach}
}

func dialAttach(ctx context.Context, l *looker, name string, options runtime.Object) (*url.URL, *nodelink.Link, *translator.Options,
	error) {
	o, ok := options.(*v1.PodAttachOptions)
	if !ok {
		return nil, nil, nil, wrongOptions(options)
	}
	streams := translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
	return dialStreams(ctx, l, "attach", name, o.Container, streams, nil)
}

func dialStreams(ctx context.Context, l *looker, verb, name, container string, streams translator.Options, command []string) (*url.URL,
	*nodelink.Link, *translator.Options, error) {
	pod, link, err := l.agentOf(ctx, name, &container)
	if err != nil || link == nil {
		return nil, nil, nil, err
	}
	path := fmt.Sprintf("/%s/%s/%s/%s", verb, pod.Namespace, pod.Name, container)
	return link.URL(path, streamQuery(streams, command)), link, &streams, nil
}

// streamQuery names the streams as the agent does, which is not as the API does.
func streamQuery(s translator.Options, command []string) url.Values {
	q := url.Values{}
	for name, on := range map[string]bool{"input": s.Stdin, "output": s.Stdout, "error": s.Stderr, "tty": s.Tty} {
		if on {
			q.Set(name, "1")
		}
	}
	if len(command) > 0 {
		q["command"] = command
	}
	return q
}

func newPortForward(l *looker) rest.Storage {
	return &session{looker: l, options: func() runtime.Object { return &v1.PodPortForwardOptions{} }, dial: dialPortForward}
}

func dialPortForward(ctx context.Context, l *looker, name string, options runtime.Object) (*url.URL, *nodelink.Link, *translator.Options,
	error) {
	o, ok := options.(*v1.PodPortForwardOptions)
	if !ok {
		return nil, nil, nil, wrongOptions(options)
	}
	pod, link, err := l.agentOf(ctx, name, nil)
	if err != nil || link == nil {
		return nil, nil, nil, err
	}
	q := url.Values{}
	for _, p := range o.Ports {
		q.Add("port", fmt.Sprint(p))
	}
	return link.URL(fmt.Sprintf("/portForward/%s/%s", pod.Namespace, pod.Name), q), link, nil, nil
}
