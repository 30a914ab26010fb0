package serve

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// permissions maps tokens to what their user may do: "verb subresource".
var permissions = map[string][]string{
	"metrics-server": {"get metrics", "get stats"},
	"api-server":     {"get proxy", "create proxy", "update proxy", "get log", "create checkpoint"},
	"pod-viewer":     {"get pods"},
	"prometheus":     {"get metrics", "get proxy"},
	"operator":       {"create exec"},
	"provisioner":    {"create localvolumes"},
	"nobody":         nil,
}

// newClient asks a server that answers reviews from permissions.
func newClient(t *testing.T) kubernetes.Interface {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, req *http.Request) {
		review := &authenticationv1.TokenReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Error(err)
		}
		_, review.Status.Authenticated = permissions[review.Spec.Token]
		review.Status.User.Username = review.Spec.Token
		writeJSON(w, review)
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, req *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Error(err)
		}
		attributes := review.Spec.ResourceAttributes
		for _, allowed := range permissions[review.Spec.User] {
			if attributes.Resource == "nodes" && attributes.Name == "n1" && attributes.Verb+" "+attributes.Subresource == allowed {
				review.Status.Allowed = true
			}
		}
		writeJSON(w, review)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
}

// fakePods holds one running pod, p in default.
type fakePods struct {
	pod    *v1.Pod
	exited chan struct{}
}

func (f *fakePods) List() []*v1.Pod { return []*v1.Pod{f.pod} }

func (f *fakePods) Get(namespace, name string) (*v1.Pod, bool) {
	if namespace == f.pod.Namespace && name == f.pod.Name {
		return f.pod, true
	}
	return nil, false
}

func (f *fakePods) Exited(context.Context, string) <-chan struct{} { return f.exited }

// fakeCRI has one container whose streams are served by streaming.
type fakeCRI struct {
	logPath    string
	streaming  string
	mu         sync.Mutex
	lastExec   *runtimeapi.ExecRequest
	checkpoint error // what CheckpointContainer fails with
}

func (f *fakeCRI) ListPodSandbox(_ context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	if filter.LabelSelector[labelPodUID] != "uid-p" {
		return nil, nil
	}
	return []*runtimeapi.PodSandbox{{Id: "sandbox"}}, nil
}

func (f *fakeCRI) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	if name, ok := filter.LabelSelector[labelContainerName]; ok && name != "c" {
		return nil, nil
	}
	return []*runtimeapi.Container{{Id: "id-c", Image: &runtimeapi.ImageSpec{Image: "i"},
		Labels: map[string]string{labelPodUID: "uid-p", labelPodName: "p", labelPodNamespace: "default", labelContainerName: "c"}}}, nil
}

func (f *fakeCRI) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	if id != "id-c" {
		return nil, fmt.Errorf("no container %s", id)
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{LogPath: f.logPath}}, nil
}

func (f *fakeCRI) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastExec = req
	return &runtimeapi.ExecResponse{Url: f.streaming + "/exec?" + streamQuery(req.Stdin, req.Stdout, req.Stderr)}, nil
}

func (f *fakeCRI) ExecSync(_ context.Context, _ string, cmd []string, _ time.Duration) (stdout, stderr []byte, err error) {
	return []byte(strings.Join(cmd, "+")), nil, nil
}

func (f *fakeCRI) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return &runtimeapi.AttachResponse{Url: f.streaming + "/attach?" + streamQuery(req.Stdin, req.Stdout, req.Stderr)}, nil
}

func (f *fakeCRI) PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return &runtimeapi.PortForwardResponse{Url: f.streaming + "/portforward"}, nil
}

func (f *fakeCRI) CheckpointContainer(_ context.Context, req *runtimeapi.CheckpointContainerRequest) error {
	if f.checkpoint != nil {
		return f.checkpoint
	}
	return os.WriteFile(req.Location, []byte("state"), 0o600)
}

type harness struct {
	url  string
	pods *fakePods
	cri  *fakeCRI
	cfg  Config
}

// start serves the API on a free port until the test ends.
func start(t *testing.T, change func(*Config)) *harness {
	t.Helper()
	dir := t.TempDir()
	h := &harness{
		pods: &fakePods{exited: make(chan struct{}), pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid-p"},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c"}, {Name: "waiting"}}},
			Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{
				{Name: "c", ContainerID: "containerd://id-c", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}},
				{Name: "waiting", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
			}},
		}},
		cri: &fakeCRI{logPath: filepath.Join(dir, "0.log"), streaming: streamingServer(t)},
	}
	if err := os.WriteFile(h.cri.logPath, []byte("2026-01-02T03:04:05Z stdout F one\n2026-01-02T03:04:06Z stdout F two\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey("n1", nil, []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.url = "https://" + listener.Addr().String()
	h.cfg = Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "n1", Kubelet: &kubeletv1beta1.KubeletConfiguration{}, Client: newClient(t),
		TLS: &tls.Config{Certificates: []tls.Certificate{pair}}, Pods: h.pods, Runtime: h.cri, RootDir: dir, Logs: SystemLogs{Dir: dir},
		Listeners: Listeners{API: listener},
		Flags:     map[string]string{"node-ip": "192.0.2.7"},
	}
	if change != nil {
		change(&h.cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, h.cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return h
}

func (h *harness) rest(token string) *rest.Config {
	return &rest.Config{Host: h.url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

func (h *harness) do(t *testing.T, token, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, h.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}
