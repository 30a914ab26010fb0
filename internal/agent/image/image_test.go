package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	crv1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// testRegistry is a real registry on loopback that may want a password, be
// slow, or break in the middle of a layer.
type testRegistry struct {
	host           string
	user, password string

	mu     sync.Mutex
	broken bool
	hold   chan struct{}
	held   chan struct{}
}

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	r := &testRegistry{held: make(chan struct{}, 100)}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		user, password, broken, hold := r.user, r.password, r.broken, r.hold
		r.mu.Unlock()
		if user != "" {
			if u, p, ok := req.BasicAuth(); !ok || u != user || p != password {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
		}
		if strings.Contains(req.URL.Path, "/blobs/") && req.Method == http.MethodGet {
			if hold != nil {
				r.held <- struct{}{}
				<-hold
			}
			if broken {
				w.Header().Set("Content-Length", "1000")
				_, _ = w.Write([]byte("half"))
				panic(http.ErrAbortHandler)
			}
		}
		inner.ServeHTTP(w, req)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(s.Close)
	r.host = strings.TrimPrefix(s.URL, "http://")
	return r
}

func (r *testRegistry) set(f func(*testRegistry)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

func (r *testRegistry) push(t *testing.T, repo string) string {
	t.Helper()
	img, err := random.Image(1024, 1)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(r.host + "/" + repo)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return r.host + "/" + repo
}

// fakeRuntime is an image service that really pulls.
type fakeRuntime struct {
	mu      sync.Mutex
	images  map[string]*runtimeapi.Image
	pulls   []string // image and user
	fail    error
	running int
	most    int
}

func newRuntime() *fakeRuntime { return &fakeRuntime{images: map[string]*runtimeapi.Image{}} }

func (f *fakeRuntime) ImageStatus(_ context.Context, spec *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	return &runtimeapi.ImageStatusResponse{Image: f.images[spec.Image]}, nil
}

func (f *fakeRuntime) PullImage(ctx context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig,
	_ *runtimeapi.PodSandboxConfig) (string, error) {
	f.mu.Lock()
	f.pulls = append(f.pulls, spec.Image+" as "+auth.GetUsername())
	f.running++
	f.most = max(f.most, f.running)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.running--
		f.mu.Unlock()
	}()
	img, err := fetch(ctx, spec.Image, auth)
	if err != nil {
		return "", fmt.Errorf("rpc error: code = Unknown desc = %w", err)
	}
	digest, err := img.ConfigName()
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.images[spec.Image] = &runtimeapi.Image{Id: digest.String(), Size: 1234, Username: "", Uid: &runtimeapi.Int64Value{Value: 7}}
	return digest.String(), nil
}

func fetch(ctx context.Context, image string, auth *runtimeapi.AuthConfig) (crv1.Image, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, err
	}
	opts := []remote.Option{remote.WithContext(ctx), remote.WithRetryBackoff(remote.Backoff{Steps: 1})}
	if auth != nil {
		opts = append(opts, remote.WithAuth(&authn.Basic{Username: auth.Username, Password: auth.Password}))
	}
	img, err := remote.Image(ref, opts...)
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		rc, err := l.Compressed()
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.Discard, rc)
		rc.Close()
		if err != nil {
			return nil, err
		}
	}
	return img, nil
}

func (f *fakeRuntime) pulled() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.pulls, ", ")
}

type recorder struct {
	mu   sync.Mutex
	list []string
}

func (r *recorder) add(_ *v1.Pod, container, eventType, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, eventType+" "+reason+" "+message)
}

func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.list, "\n")
	r.list = nil
	return s
}

func testPod(uid string, pullSecrets ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: types.UID(uid)}}
	for _, s := range pullSecrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: s})
	}
	return p
}

func secretsOf(list ...*v1.Secret) func(context.Context, string, string) (*v1.Secret, error) {
	return func(_ context.Context, ns, n string) (*v1.Secret, error) {
		for _, s := range list {
			if s.Namespace == ns && s.Name == n {
				return s, nil
			}
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, n)
	}
}

func dockerSecret(name, server, user, password string) *v1.Secret {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	return &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, server, auth))},
	}
}

func newPuller(t *testing.T, cfg Config) *Puller {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ensure(p *Puller, pod *v1.Pod, image string, policy v1.PullPolicy) (result, error) {
	return p.Ensure(context.Background(), pod, &v1.Container{Name: "c", Image: image, ImagePullPolicy: policy})
}

func wantError(t *testing.T, err error, reason, message string) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Reason != reason || !strings.Contains(e.Message, message) {
		t.Fatalf("got %v, want %s: %s", err, reason, message)
	}
	return e
}

func TestPoliciesAndNames(t *testing.T) {
	rt, ev, reg := newRuntime(), &recorder{}, newRegistry(t)
	image := reg.push(t, "app:1")
	p := newPuller(t, Config{Service: rt, Event: ev.add})

	_, err := ensure(p, testPod("a"), "Not//Valid", "")
	wantError(t, err, ReasonInvalidImageName, `Failed to apply default image tag "Not//Valid": couldn't parse image name "Not//Valid": `)
	if got := ev.take(); !strings.HasPrefix(got, "Warning InspectFailed Failed to apply") ||
		!strings.HasSuffix(got, "Warning Failed Error: InvalidImageName") {
		t.Errorf("events:\n%s", got)
	}

	_, err = ensure(p, testPod("a"), image, v1.PullNever)
	wantError(t, err, ReasonErrImageNeverPull, fmt.Sprintf("Container image %q is not present with pull policy of Never", image))
	if got := ev.take(); got != fmt.Sprintf("Warning ErrImageNeverPull Container image %q is not present with pull policy of Never",
		image) {
		t.Errorf("events:\n%s", got)
	}

	res, err := ensure(p, testPod("a"), image, v1.PullIfNotPresent)
	if err != nil || !res.Pulled || res.UID == nil || *res.UID != 7 || !strings.HasPrefix(res.Ref, "sha256:") {
		t.Fatalf("%+v, %v", res, err)
	}
	got := ev.take()
	if !strings.HasPrefix(got, fmt.Sprintf("Normal Pulling Pulling image %q\nNormal Pulled Successfully pulled image %q in ", image,
		image)) || !strings.HasSuffix(got, "including waiting). Image size: 1234 bytes.") {
		t.Errorf("events:\n%s", got)
	}

	res, err = ensure(p, testPod("a"), image, v1.PullIfNotPresent)
	if err != nil || res.Pulled ||
		ev.take() != fmt.Sprintf("Normal Pulled Container image %q already present on machine and can be accessed by the pod", image) {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := ensure(p, testPod("a"), image, v1.PullNever); err != nil {
		t.Error(err)
	}
	if _, err := ensure(p, testPod("a"), image, v1.PullAlways); err != nil {
		t.Error(err)
	}
	if got := rt.pulled(); got != image+" as , "+image+" as " {
		t.Errorf("pulled %s", got)
	}

	rt.fail = errors.New("boom")
	_, err = ensure(p, testPod("a"), image, v1.PullNever)
	wantError(t, err, ReasonImageInspectError, fmt.Sprintf("Failed to inspect image %q: boom", image))
}

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"nginx": "nginx:latest Always", "nginx:1": "nginx:1 IfNotPresent", "r.example:5000/a/b": "r.example:5000/a/b:latest Always",
		"a@sha256:" + strings.Repeat("0", 64): "a@sha256:" + strings.Repeat("0", 64) + " IfNotPresent",
		"UPPER":                               "error", "": "error", "a b": "error",
	} {
		image, named, err := normalize(in)
		got := "error"
		if err == nil {
			got = image + " " + string(defaultPolicy(named))
		}
		if got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestBackOffDoublesAndEnds(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	rt, ev, reg := newRuntime(), &recorder{}, newRegistry(t)
	image := reg.push(t, "app:1")
	reg.set(func(r *testRegistry) { r.broken = true })
	p := newPuller(t, Config{Service: rt, Event: ev.add, Clock: clk})
	pod := testPod("a")
	for _, delay := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		_, err := ensure(p, pod, image, v1.PullIfNotPresent)
		e := wantError(t, err, ReasonErrImagePull, "")
		if got := e.RetryAt.Sub(clk.Now()); got != delay*time.Second {
			t.Fatalf("retry after %v, want %ds", got, delay)
		}
		if got := ev.take(); !strings.Contains(got, fmt.Sprintf("Warning Failed Failed to pull image %q: ", image)) ||
			!strings.HasSuffix(got, "Warning Failed Error: ErrImagePull") {
			t.Fatalf("events:\n%s", got)
		}
		_, err = ensure(p, pod, image, v1.PullIfNotPresent)
		wantError(t, err, ReasonImagePullBackOff, fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s", image, e.Message))
		if got := ev.take(); got != fmt.Sprintf("Normal BackOff Back-off pulling image %q\nWarning Failed Error: ImagePullBackOff", image) {
			t.Fatalf("events:\n%s", got)
		}
		clk.SetTime(e.RetryAt)
	}
	// Another pod's back-off is its own.
	_, err := ensure(p, testPod("b"), image, v1.PullIfNotPresent)
	if e := wantError(t, err, ReasonErrImagePull, ""); e.RetryAt.Sub(clk.Now()) != 10*time.Second {
		t.Errorf("another pod waits until %v", e.RetryAt)
	}
	reg.set(func(r *testRegistry) { r.broken = false })
	if _, err := ensure(p, pod, image, v1.PullIfNotPresent); err != nil {
		t.Error(err)
	}
	p.Forget("b")
	if len(p.backoff) != 0 {
		t.Errorf("still backs off for %v", p.backoff)
	}
}

func TestPullSecretsAndRecords(t *testing.T) {
	rt, ev, reg := newRuntime(), &recorder{}, newRegistry(t)
	image := reg.push(t, "private/app:1")
	reg.set(func(r *testRegistry) { r.user, r.password = "joe", "pw:with:colons" })
	dir := t.TempDir()
	cfg := Config{Service: rt, Event: ev.add, Dir: dir, Secret: secretsOf(
		dockerSecret("wrong", reg.host, "joe", "nope"), dockerSecret("right", "http://"+reg.host+"/private", "joe", "pw:with:colons"),
		dockerSecret("other-path", reg.host+"/else", "eve", "x"), dockerSecret("same", reg.host, "joe", "pw:with:colons"),
	)}
	p := newPuller(t, cfg)

	_, err := ensure(p, testPod("a", "missing"), image, v1.PullIfNotPresent)
	e := wantError(t, err, ReasonErrImagePull, "")
	if strings.Contains(e.Message, "pw:with") {
		t.Error("the message reveals a password")
	}
	if !strings.Contains(ev.take(),
		"Warning FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (missing); attempting to pull the image may "+
			"not succeed.") {
		t.Error("the missing secret is not reported")
	}
	res, err := ensure(p, testPod("b", "other-path", "wrong", "right"), image, v1.PullIfNotPresent)
	if err != nil {
		t.Fatal(err)
	}
	// The most specific comes first within a secret; secrets in their order.
	if got := rt.pulled(); got != image+" as , "+image+" as joe, "+image+" as joe" {
		t.Errorf("pulled %s", got)
	}

	// Present, but not for everybody; also after a restart.
	for _, q := range []*Puller{p, newPuller(t, cfg)} {
		_, err = ensure(q, testPod("c"), image, v1.PullNever)
		wantError(t, err, ReasonErrImageNeverPull, "")
		_, err = ensure(q, testPod("c"), image, v1.PullIfNotPresent)
		wantError(t, err, ReasonErrImagePull, "")
		for _, secret := range []string{"right", "same"} {
			if r, err := ensure(q, testPod("d", secret), image, v1.PullNever); err != nil || r.ID != res.ID {
				t.Errorf("with %s: %v", secret, err)
			}
		}
		_, err = ensure(q, testPod("d", "wrong"), image, v1.PullNever)
		wantError(t, err, ReasonErrImageNeverPull, "")
	}
	cfg.Verification.Policy = NeverVerify
	if _, err := ensure(newPuller(t, cfg), testPod("e"), image, v1.PullNever); err != nil {
		t.Errorf("NeverVerify: %v", err)
	}
	cfg.Verification = Verification{Policy: NeverVerifyAllowlisted, Allowlist: []string{reg.host + "/private/*"}}
	if _, err := ensure(newPuller(t, cfg), testPod("e"), image, v1.PullNever); err != nil {
		t.Errorf("allowlisted: %v", err)
	}
	// An image that no one pulled is free by default, and not with AlwaysVerify.
	rt.images["imported:1"] = &runtimeapi.Image{Id: "sha256:imported"}
	if _, err := ensure(p, testPod("e"), "imported:1", v1.PullNever); err != nil {
		t.Errorf("preloaded: %v", err)
	}
	cfg.Verification = Verification{Policy: AlwaysVerify}
	_, err = ensure(newPuller(t, cfg), testPod("e"), "imported:1", v1.PullNever)
	wantError(t, err, ReasonErrImageNeverPull, "")
	cfg.Verification = Verification{Policy: "Sometimes"}
	if _, err := New(cfg); err == nil {
		t.Error("an unknown policy was accepted")
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "image_manager", "pulling")); len(left) != 0 {
		t.Errorf("intents left: %v", left)
	}
}
