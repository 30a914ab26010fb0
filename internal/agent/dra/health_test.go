package dra

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

func word(health healthv1.HealthStatus, lasts int64) *healthv1.NodeWatchResourcesResponse {
	return &healthv1.NodeWatchResourcesResponse{Devices: []*healthv1.DeviceHealth{
		{Device: &healthv1.DeviceIdentifier{PoolName: "n1", DeviceName: "gpu-1"}, Health: health, HealthCheckTimeoutSeconds: lasts}}}
}

// TestHealthOfClaimedDevices: pods are told of every word of a driver in
// either version, of the end of its stream, and hear again when it is back.
func TestHealthOfClaimedDevices(t *testing.T) {
	for _, version := range []string{"v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"} {
		t.Run(version, func(t *testing.T) {
			d := startDriver(t)
			changed := make(chan types.UID, 10)
			m, err := New(Config{Log: slog.New(slog.DiscardHandler), RootDir: t.TempDir(), NodeName: "n1",
				Client: fake.NewClientset(claim("gpu", "p")), Changed: func(uid types.UID) { changed <- uid }})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Register(t.Context(), driverName, d.socket, []string{"v1.DRAPlugin", version}); err != nil {
				t.Fatal(err)
			}
			p := pod("p", "gpu")
			if err := m.Prepare(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error)
			go func() { done <- m.Run(ctx) }()
			expect := func(now time.Time, want v1.ResourceHealthStatus) {
				t.Helper()
				got := fmt.Sprint(m.Health(p, now)["one"])
				if text := fmt.Sprintf("[{claim:gpu/small [{gpu.example.com/n1/gpu-1 %s <nil>}]}]", want); got != text {
					t.Errorf("health is %s, want %s", got, text)
				}
			}
			expect(time.Now(), "Unknown")
			d.words <- word(healthv1.HealthStatus_HEALTHY, 0)
			if uid := <-changed; uid != "p" {
				t.Errorf("told of %s", uid)
			}
			expect(time.Now(), "Healthy")
			expect(time.Now().Add(healthLasts+time.Second), "Unknown")
			d.words <- word(healthv1.HealthStatus_UNHEALTHY, 120)
			<-changed
			expect(time.Now().Add(healthLasts+time.Second), "Unhealthy")
			d.words <- nil // the driver restarts
			<-changed
			expect(time.Now(), "Unknown")
			d.words <- word(healthv1.HealthStatus_HEALTHY, 0)
			<-changed
			expect(time.Now(), "Healthy")
			if all := m.Health(p, time.Now())["all"]; len(all) != 1 || all[0].Name != "claim:gpu" || len(all[0].Resources) != 2 ||
				all[0].Resources[0].Health != "Unknown" {
				t.Errorf("the container with all devices: %v", all)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
