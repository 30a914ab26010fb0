package agent

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"

	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	tracingv1 "k8s.io/component-base/tracing/api/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/telemetry"
)

// collector is an OTLP receiver that remembers the names of spans, and of the
// services and hosts they come from.
type collector struct {
	coltrace.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans map[string]int
	from  map[string]bool
}

func (c *collector) Export(_ context.Context, req *coltrace.ExportTraceServiceRequest) (*coltrace.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.ResourceSpans {
		for _, a := range r.Resource.Attributes {
			c.from[a.Key+"="+a.Value.GetStringValue()] = true
		}
		for _, s := range r.ScopeSpans {
			for _, span := range s.Spans {
				c.spans[span.Name]++
			}
		}
	}
	return &coltrace.ExportTraceServiceResponse{}, nil
}

type smallRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
}

func (smallRuntime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "test", RuntimeVersion: "1", RuntimeApiVersion: "v1"}, nil
}

func (smallRuntime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

func serveGRPC(t *testing.T, network, address string, register func(*grpc.Server)) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return l.Addr().String()
}

// TestTracing makes calls of a runtime and looks for their spans at a
// collector: all, none, and none of an agent that is not told to trace.
func TestTracing(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cri.sock")
	serveGRPC(t, "unix", socket, func(s *grpc.Server) {
		runtimeapi.RegisterRuntimeServiceServer(s, smallRuntime{})
		runtimeapi.RegisterImageServiceServer(s, smallRuntime{})
	})
	for name, c := range map[string]struct {
		rate  *int32
		trace bool
		want  bool
	}{"all": {new(int32(1000000)), true, true}, "none sampled": {new(int32(0)), true, false}, "not configured": {nil, false, false}} {
		t.Run(name, func(t *testing.T) {
			col := &collector{spans: map[string]int{}, from: map[string]bool{}}
			endpoint := serveGRPC(t, "tcp", "127.0.0.1:0", func(s *grpc.Server) { coltrace.RegisterTraceServiceServer(s, col) })
			k := &kubeletv1beta1.KubeletConfiguration{}
			if c.trace {
				k.Tracing = &tracingv1.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: c.rate}
			}
			log := slog.New(slog.DiscardHandler)
			tracer, stop, err := telemetry.Trace(t.Context(), k.Tracing, "n1", log)
			if err != nil {
				t.Fatal(err)
			}
			svc, images, err := runtime.Connect(t.Context(), runtime.ConnectConfig{Endpoint: "unix://" + socket, Log: log, Tracer: tracer})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := svc.Version(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			_ = svc.Close(t.Context())
			_ = images.Close(t.Context())
			stop()
			col.mu.Lock()
			defer col.mu.Unlock()
			if got := col.spans["runtime.v1.RuntimeService/Version"] > 0; got != c.want {
				t.Errorf("a span of the call: %v, want %v; spans %v", got, c.want, col.spans)
			}
			if c.want && (!col.from["service.name=kubelet"] || !col.from["host.name=n1"]) {
				t.Errorf("spans come from %v", col.from)
			}
		})
	}
}
