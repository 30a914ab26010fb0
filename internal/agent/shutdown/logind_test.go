package shutdown

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/shutdown/logindtest"
)

// TestShutdownOverTheBus takes a delay lock over a real message bus, raises the
// limit first, ends pods when the signal comes, and lets the host go after.
func TestShutdownOverTheBus(t *testing.T) {
	dropIn := filepath.Join(t.TempDir(), "logind.conf.d", "99.conf")
	logind := logindtest.Start(t, 5*time.Second, dropIn)
	over := make(chan struct{})
	killed := make(chan string, 10)
	m, err := New(Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "n1", System: &Logind{DropIn: dropIn}, Status: &status{},
		Events:  record.NewFakeRecorder(10),
		Kubelet: &kubeletv1beta1.KubeletConfiguration{ShutdownGracePeriod: seconds(30), ShutdownGracePeriodCriticalPods: seconds(10)},
		Pods:    func() []*v1.Pod { return []*v1.Pod{aPod("dns", criticalPriority, 5), aPod("web", 0, 5)} },
		Kill: func(p *v1.Pod, _ time.Duration) <-chan struct{} {
			killed <- p.Name
			return over
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	lock := <-logind.Locks
	if lock.Asked != "shutdown delay kubelet" {
		t.Errorf("logind was asked for %q", lock.Asked)
	}
	if text, err := os.ReadFile(dropIn); err != nil || !strings.Contains(string(text), "InhibitDelayMaxSec=30") {
		t.Errorf("the limit was not raised: %q, %v", text, err)
	}
	// The lock is taken a moment before the signal is listened for.
	for first := ""; first == ""; {
		logind.Announce(true)
		select {
		case first = <-killed:
			if first != "web" {
				t.Errorf("%s was ended first", first)
			}
		case <-time.After(20 * time.Millisecond):
		}
	}
	select {
	case <-lock.Released():
		t.Error("the machine was let go with pods still ending")
	default:
	}
	close(over)
	if second := <-killed; second != "dns" {
		t.Errorf("%s was ended second", second)
	}
	<-lock.Released()
	if reason, _, ok := m.Admit(nil); ok || reason != "NodeShutdown" {
		t.Errorf("a pod was admitted (%s)", reason)
	}
	logind.Announce(false)
	<-logind.Locks // a new delay for the next time
}

// TestWithoutABusThereIsAReason: the manager says what is missing and goes on
// trying.
func TestWithoutABusThereIsAReason(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	_, _, err := (&Logind{}).Delay(t.Context(), time.Second)
	if err == nil || !strings.Contains(err.Error(), "connecting to D-Bus for logind") {
		t.Errorf("got %v", err)
	}
}
