package plugins

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

type plugin struct {
	registration.UnimplementedRegistrationServer
	kind   string
	status chan string
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: p.kind, Name: "p", SupportedVersions: []string{"v1"}}, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse,
	error) {
	if s.PluginRegistered {
		p.status <- "registered"
	} else {
		p.status <- s.Error
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func serve(t *testing.T, path, kind string) (*plugin, func()) {
	t.Helper()
	p := &plugin{kind: kind, status: make(chan string, 10)}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, p)
	done := make(chan struct{})
	go func() { _ = s.Serve(l); close(done) }()
	return p, func() { s.Stop(); <-done }
}

type handler struct {
	fail  chan error
	calls chan string
}

func (h *handler) Register(_ context.Context, name, endpoint string, _ []string) error {
	select {
	case err := <-h.fail:
		return err
	default:
	}
	h.calls <- "register " + name + " at " + filepath.Base(endpoint)
	return nil
}

func (h *handler) Deregister(name, endpoint string) {
	h.calls <- "deregister " + name + " at " + filepath.Base(endpoint)
}

func TestPluginsComeAndGo(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir, err := os.MkdirTemp("", "plug") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	h := &handler{fail: make(chan error, 1), calls: make(chan string, 10)}
	want := func(ch chan string, text string) {
		t.Helper()
		if got := <-ch; got != text {
			t.Fatalf("got %q, want %q", got, text)
		}
	}
	// One is there before the watch begins.
	early, stopEarly := serve(t, filepath.Join(dir, "early.sock"), DevicePlugin)
	defer stopEarly()
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() { ran <- Run(ctx, Config{Dir: dir, Clock: clk, Handlers: map[string]Handler{DevicePlugin: h}}) }()
	want(h.calls, "register p at early.sock")
	want(early.status, "registered")

	// One comes in a directory of its own, and fails at first.
	h.fail <- errors.New("not now")
	sub := filepath.Join(dir, "sub", "deeper")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	late, stopLate := serve(t, filepath.Join(sub, "late.sock"), DevicePlugin)
	defer stopLate()
	want(late.status, "not now")
	for !clk.HasWaiters() { // the fake clock offers no event for a new timer
		time.Sleep(0)
	}
	clk.Step(firstRetry)
	want(h.calls, "register p at late.sock")
	want(late.status, "registered")

	// A type that no one speaks is told so.
	odd, stopOdd := serve(t, filepath.Join(dir, "odd.sock"), "Odd")
	defer stopOdd()
	want(odd.status, `plugin type "Odd" is not handled by this node`)

	// A hidden socket and a plain file are not plugins.
	hidden, stopHidden := serve(t, filepath.Join(dir, ".hidden.sock"), DevicePlugin)
	defer stopHidden()
	if err := os.WriteFile(filepath.Join(dir, "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "early.sock")); err != nil {
		t.Fatal(err)
	}
	want(h.calls, "deregister p at early.sock")
	// A stop of the agent deregisters nothing.
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if len(h.calls)+len(hidden.status) != 0 {
		t.Error("more happened than should have")
	}
}
