package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels by which the runtime's objects tell whose they are.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"
)

func (s *server) healthz(w http.ResponseWriter, req *http.Request) {
	// "log" is there because monitors ask for it: ours are written unbuffered.
	well := func() error { return nil }
	checks := append([]Check{{Name: "ping", Check: well}, {Name: "log", Check: well}}, s.cfg.Checks...)
	answerChecks(w, req, checks, req.PathValue("check"))
}

// localHealthz is what the local health port serves: that the process answers.
func (s *server) localHealthz() http.Handler {
	ping := []Check{{Name: "ping", Check: func() error { return nil }}}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, req *http.Request) { answerChecks(w, req, ping, "") })
	mux.HandleFunc("/healthz/{check}", func(w http.ResponseWriter, req *http.Request) {
		answerChecks(w, req, ping, req.PathValue("check"))
	})
	return mux
}

// answerChecks runs one check or all; the answer is "ok", or 500 with a line
// per check.
func answerChecks(w http.ResponseWriter, req *http.Request, checks []Check, only string) {
	var lines bytes.Buffer
	failed, found := false, only == ""
	for _, check := range checks {
		if only != "" && check.Name != only {
			continue
		}
		found = true
		err := check.Check()
		observe(req.Context(), check.Name, err)
		if err != nil {
			failed = true
			fmt.Fprintf(&lines, "[-]%s failed: %v\n", check.Name, err)
		} else {
			fmt.Fprintf(&lines, "[+]%s ok\n", check.Name)
		}
	}
	_, verbose := req.URL.Query()["verbose"]
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case !found:
		http.Error(w, fmt.Sprintf("no health check %q", only), http.StatusNotFound)
	case failed:
		http.Error(w, lines.String()+"healthz check failed", http.StatusInternalServerError)
	case verbose:
		lines.WriteString("healthz check passed\n")
		w.Write(lines.Bytes())
	default:
		io.WriteString(w, "ok")
	}
}

func (s *server) pods(w http.ResponseWriter, _ *http.Request) {
	list := &v1.PodList{Items: []v1.Pod{}}
	for _, pod := range s.cfg.Pods.List() {
		list.Items = append(list.Items, *pod)
	}
	writePods(w, list)
}

func (s *server) runningPods(w http.ResponseWriter, req *http.Request) {
	containers, err := s.cfg.Runtime.ListContainers(req.Context(), &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		http.Error(w, fmt.Sprintf("listing running containers: %v", err), http.StatusInternalServerError)
		return
	}
	list := &v1.PodList{Items: []v1.Pod{}}
	index := map[string]int{}
	for _, container := range containers {
		labels := container.GetLabels()
		uid := labels[labelPodUID]
		if uid == "" {
			continue
		}
		at, ok := index[uid]
		if !ok {
			at = len(list.Items)
			index[uid] = at
			list.Items = append(list.Items, v1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: labels[labelPodName], Namespace: labels[labelPodNamespace], UID: types.UID(uid)}})
		}
		list.Items[at].Spec.Containers = append(list.Items[at].Spec.Containers,
			v1.Container{Name: labels[labelContainerName], Image: container.GetImage().GetImage()})
	}
	writePods(w, list)
}

func writePods(w http.ResponseWriter, list *v1.PodList) {
	list.TypeMeta = metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}
	writeJSON(w, list)
}

func writeJSON(w http.ResponseWriter, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, fmt.Sprintf("encoding the answer: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(body)
}

func (s *server) configz(w http.ResponseWriter, _ *http.Request) {
	effective := s.cfg.Kubelet.DeepCopy()
	effective.TypeMeta = metav1.TypeMeta{Kind: "KubeletConfiguration", APIVersion: "kubelet.config.k8s.io/v1beta1"}
	for header := range effective.StaticPodURLHeader {
		effective.StaticPodURLHeader[header] = []string{"<masked>"} // may hold credentials
	}
	writeJSON(w, map[string]any{"kubeletconfig": effective})
}

func (s *server) summary(w http.ResponseWriter, req *http.Request) {
	if s.noStats(w) {
		return
	}
	only := req.URL.Query().Get("only_cpu_and_memory") == "true"
	summary, err := s.cfg.Stats.Summary(req.Context(), only)
	if err != nil {
		http.Error(w, fmt.Sprintf("measuring the summary: %v", err), http.StatusInternalServerError)
		return
	}
	writeJSON(w, summary)
}

func (s *server) noStats(w http.ResponseWriter) bool {
	if s.cfg.Stats == nil {
		http.Error(w, "this agent measures no stats", http.StatusNotImplemented)
		return true
	}
	return false
}

func (s *server) resourceMetrics(w http.ResponseWriter, req *http.Request) {
	if !s.noStats(w) {
		writeMetrics(w, func(out io.Writer) error { return s.cfg.Stats.WriteResource(req.Context(), out) })
	}
}

func (s *server) cadvisorMetrics(w http.ResponseWriter, req *http.Request) {
	if !s.noStats(w) {
		writeMetrics(w, func(out io.Writer) error { return s.cfg.Stats.WriteCAdvisor(req.Context(), out) })
	}
}

// writeMetrics sends nothing if measuring fails, and breaks off what has begun:
// half a scrape looks like pods that went away.
func writeMetrics(w http.ResponseWriter, write func(io.Writer) error) {
	body := &begun{w: w}
	err := write(body)
	switch {
	case err != nil && body.yes:
		panic(http.ErrAbortHandler)
	case err != nil:
		http.Error(w, fmt.Sprintf("measuring: %v", err), http.StatusInternalServerError)
	}
}

// begun writes metrics and knows whether it did.
type begun struct {
	w   http.ResponseWriter
	yes bool
}

func (b *begun) Write(text []byte) (int, error) {
	if !b.yes {
		b.w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		b.yes = true
	}
	return b.w.Write(text)
}

func (s *server) setVerbosity(w http.ResponseWriter, req *http.Request) {
	if s.cfg.LogLevel == nil {
		http.Error(w, "this agent's log level is fixed", http.StatusNotImplemented)
		return
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, 16))
	if err != nil {
		http.Error(w, fmt.Sprintf("reading the level: %v", err), http.StatusBadRequest)
		return
	}
	verbosity, err := strconv.Atoi(strings.TrimSpace(string(body)))
	if err != nil || verbosity < 0 {
		http.Error(w, fmt.Sprintf("verbosity %q is no number from 0 up", body), http.StatusBadRequest)
		return
	}
	level := slog.LevelInfo
	if verbosity >= 4 {
		level = slog.LevelDebug
	}
	s.cfg.LogLevel.Set(level)
	fmt.Fprintf(w, "successfully set klog.logging.verbosity to %d", verbosity)
}

// checkpoint asks the runtime to write a container's state to a file.
func (s *server) checkpoint(w http.ResponseWriter, req *http.Request) {
	target, ok := s.container(w, req)
	if !ok {
		return
	}
	timeout := int64(0)
	if text := req.URL.Query().Get("timeout"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds < 0 {
			http.Error(w, fmt.Sprintf("timeout %q is no number of seconds", text), http.StatusBadRequest)
			return
		}
		timeout = seconds
	}
	dir := filepath.Join(s.cfg.RootDir, "checkpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		http.Error(w, fmt.Sprintf("making the checkpoint directory: %v", err), http.StatusInternalServerError)
		return
	}
	file := filepath.Join(dir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", target.pod.Name, target.pod.Namespace, target.name,
		time.Now().Format(time.RFC3339)))
	err := s.cfg.Runtime.CheckpointContainer(req.Context(), &runtimeapi.CheckpointContainerRequest{ContainerId: target.id, Location: file,
		Timeout: timeout})
	if status.Code(err) == codes.Unimplemented {
		http.Error(w, fmt.Sprintf("checkpointing of %v/%v/%v failed: the container runtime cannot write checkpoints (containerd needs "+
			"criu, and a version that has CheckpointContainer)",
			target.pod.Namespace, target.pod.Name, target.name), http.StatusInternalServerError)
		return
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("checkpointing of %v/%v/%v failed (%v)", target.pod.Namespace, target.pod.Name, target.name, err),
			http.StatusInternalServerError)
		return
	}
	writeJSON(w, map[string]any{"items": []string{file}})
}
