package contract

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/runtime/fake"
	"github.com/berth-dev/berth/internal/cluster/containerd/livetest"
)

func TestFake(t *testing.T) {
	f := fake.New(nil)
	f.IgnoresStop["stubborn"] = true
	// What the suite's scripts do.
	f.Run = func(cfg *runtimeapi.ContainerConfig) (int32, bool) {
		code, ends := strings.CutPrefix(cfg.GetCommand()[2], "exit ")
		n, _ := strconv.Atoi(code)
		return int32(n), ends
	}
	runSuite(t, subject{Service: f, Images: f, Image: "any"})
}

func TestMain(m *testing.M) { livetest.Main(m) }

// TestRuntime runs the suite against a real runtime, with BERTH_TEST_IMAGE as
// the image.
func TestRuntime(t *testing.T) {
	endpoint := livetest.Endpoint(t)
	image := os.Getenv("BERTH_TEST_IMAGE")
	if image == "" {
		image = "berth.dev/toolbox:1"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	svc, images, err := runtime.Connect(ctx, runtime.ConnectConfig{Endpoint: endpoint, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = svc.Close(context.Background())
		_ = images.Close(context.Background())
	})
	runSuite(t, subject{Service: svc, Images: images, Image: image, Host: os.Getenv("BERTH_TEST_NO_CNI") != ""})
}
