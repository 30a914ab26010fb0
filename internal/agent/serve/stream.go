package serve

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/proxy"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// target is a running container of a pod.
type target struct {
	pod  *v1.Pod
	name string
	id   string
}

// pod finds the pod that a path names; a UID in it must be that pod's.
func (s *server) pod(w http.ResponseWriter, req *http.Request) (*v1.Pod, bool) {
	namespace, name, uid := req.PathValue("namespace"), req.PathValue("pod"), req.PathValue("uid")
	pod, ok := s.cfg.Pods.Get(namespace, name)
	if !ok || uid != "" && string(pod.UID) != uid {
		http.Error(w, fmt.Sprintf("pod does not exist: %s/%s", namespace, name), http.StatusNotFound)
		return nil, false
	}
	return pod, true
}

// container finds the running container that a path names. The runtime is
// asked, since a status is always a little late.
func (s *server) container(w http.ResponseWriter, req *http.Request) (target, bool) {
	pod, ok := s.pod(w, req)
	if !ok {
		return target{}, false
	}
	name := req.PathValue("container")
	containers, err := s.cfg.Runtime.ListContainers(req.Context(), &runtimeapi.ContainerFilter{
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{labelPodUID: runtimeUID(pod), labelContainerName: name},
	})
	if err != nil {
		http.Error(w, fmt.Sprintf("finding container %q: %v", name, err), http.StatusInternalServerError)
		return target{}, false
	}
	var newest *runtimeapi.Container
	for _, container := range containers {
		if newest == nil || container.CreatedAt > newest.CreatedAt {
			newest = container
		}
	}
	if newest == nil {
		http.Error(w, fmt.Sprintf("container not found (%q)", name), http.StatusNotFound)
		return target{}, false
	}
	return target{pod: pod, name: name, id: newest.Id}, true
}

// runtimeUID is the UID the runtime knows a pod by. A mirror pod in the API
// has a UID of its own; the static pod behind it runs under its hash.
func runtimeUID(pod *v1.Pod) string {
	if hash := pod.Annotations[v1.MirrorPodAnnotationKey]; hash != "" {
		return hash
	}
	return string(pod.UID)
}

// streams are what a caller wants connected.
type streams struct{ stdin, stdout, stderr, tty bool }

// wantedStreams reads the query: the agent's own names (input, output, error)
// and the API's (stdin, stdout, stderr).
func wantedStreams(query url.Values) (streams, error) {
	on := func(names ...string) bool {
		for _, name := range names {
			if value, err := strconv.ParseBool(query.Get(name)); err == nil && value {
				return true
			}
		}
		return false
	}
	wanted := streams{stdin: on("input", "stdin"), stdout: on("output", "stdout"), stderr: on("error", "stderr"), tty: on("tty")}
	if wanted.tty {
		wanted.stderr = false // a terminal has one output
	}
	if !wanted.stdin && !wanted.stdout && !wanted.stderr {
		return wanted, failf(http.StatusBadRequest, "you must specify at least 1 of stdin, stdout, stderr")
	}
	return wanted, nil
}

func (s *server) exec(w http.ResponseWriter, req *http.Request) {
	s.stream(w, req, "exec in", func(id string, wanted streams) (string, error) {
		response, err := s.cfg.Runtime.Exec(req.Context(), &runtimeapi.ExecRequest{
			ContainerId: id, Cmd: req.URL.Query()["command"],
			Tty: wanted.tty, Stdin: wanted.stdin, Stdout: wanted.stdout, Stderr: wanted.stderr,
		})
		return response.GetUrl(), err
	})
}

func (s *server) attach(w http.ResponseWriter, req *http.Request) {
	s.stream(w, req, "attach to", func(id string, wanted streams) (string, error) {
		response, err := s.cfg.Runtime.Attach(req.Context(), &runtimeapi.AttachRequest{
			ContainerId: id, Tty: wanted.tty, Stdin: wanted.stdin, Stdout: wanted.stdout, Stderr: wanted.stderr,
		})
		return response.GetUrl(), err
	})
}

// stream connects the caller with a container. ask gets from the runtime the
// URL at which it serves the streams; verb is for errors.
func (s *server) stream(w http.ResponseWriter, req *http.Request, verb string, ask func(id string, wanted streams) (string, error)) {
	wanted, err := wantedStreams(req.URL.Query())
	if err != nil {
		writeError(w, err)
		return
	}
	target, ok := s.container(w, req)
	if !ok {
		return
	}
	location, err := ask(target.id, wanted)
	if err != nil {
		writeError(w, fmt.Errorf("asking the runtime to %s container %q: %w", verb, target.name, err))
		return
	}
	s.command(w, req, location, wanted)
}

// command connects the caller with the runtime's streaming server. The newest
// WebSocket protocol, which that server does not speak, is translated to SPDY
// here; everything else passes through.
func (s *server) command(w http.ResponseWriter, req *http.Request, location string, wanted streams) {
	to, err := url.Parse(location)
	if err != nil || to.Host == "" {
		writeError(w, fmt.Errorf("the runtime's streaming URL %q is unusable", location))
		return
	}
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(req) {
		apiserverproxy.NewStreamTranslatorHandler(to, http.DefaultTransport, 0, apiserverproxy.Options{
			Stdin: wanted.stdin, Stdout: wanted.stdout, Stderr: wanted.stderr, Tty: wanted.tty,
		}).ServeHTTP(w, req)
		return
	}
	passThrough(to).ServeHTTP(w, req)
}

func (s *server) portForward(w http.ResponseWriter, req *http.Request) {
	pod, ok := s.pod(w, req)
	if !ok {
		return
	}
	ports, err := forwardPorts(req.URL.Query())
	if err != nil {
		writeError(w, err)
		return
	}
	listed, err := s.cfg.Runtime.ListPodSandbox(req.Context(), &runtimeapi.PodSandboxFilter{
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{labelPodUID: runtimeUID(pod)},
	})
	if err != nil {
		writeError(w, fmt.Errorf("finding the sandbox of pod %q: %w", pod.Name, err))
		return
	}
	var newest *runtimeapi.PodSandbox
	for _, sandbox := range listed {
		if newest == nil || sandbox.CreatedAt > newest.CreatedAt {
			newest = sandbox
		}
	}
	if newest == nil {
		writeError(w, failf(http.StatusNotFound, "pod %q has no running sandbox", pod.Name))
		return
	}
	response, err := s.cfg.Runtime.PortForward(req.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: newest.Id, Port: ports})
	if err != nil {
		writeError(w, fmt.Errorf("asking the runtime to forward ports of pod %q: %w", pod.Name, err))
		return
	}
	to, err := url.Parse(response.GetUrl())
	if err != nil || to.Host == "" {
		writeError(w, fmt.Errorf("the runtime's streaming URL %q is unusable", response.GetUrl()))
		return
	}
	if wsstream.IsWebSocketRequestWithTunnelingProtocol(req) {
		apiserverproxy.NewTunnelingHandler(passThrough(to)).ServeHTTP(w, req)
		return
	}
	passThrough(to).ServeHTTP(w, req)
}

// forwardPorts reads the ports of the old WebSocket protocol; SPDY names them
// per stream instead.
func forwardPorts(query url.Values) ([]int32, error) {
	var ports []int32
	for _, value := range append(query["port"], query["ports"]...) {
		for _, text := range strings.Split(value, ",") {
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil || port == 0 {
				return nil, failf(http.StatusBadRequest, "port %q is no port from 1 to 65535", text)
			}
			ports = append(ports, int32(port))
		}
	}
	return ports, nil
}

// passThrough hands the upgraded connection to the runtime's streaming server.
func passThrough(to *url.URL) *proxy.UpgradeAwareHandler {
	return proxy.NewUpgradeAwareHandler(to, nil, false, true, responder{})
}

type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	code := http.StatusInternalServerError
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Code != 0 {
		code = int(status.Status().Code)
	}
	http.Error(w, err.Error(), code)
}

// run executes a command to its end and sends what it printed.
func (s *server) run(w http.ResponseWriter, req *http.Request) {
	target, ok := s.container(w, req)
	if !ok {
		return
	}
	stdout, stderr, err := s.cfg.Runtime.ExecSync(req.Context(), target.id, strings.Split(req.URL.Query().Get("cmd"), " "), 0)
	output := append(stdout, stderr...)
	if err != nil {
		writeError(w, fmt.Errorf("running the command in container %q: %w: %s", target.name, err, output))
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Write(output)
}
