package launch

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/proxy/config"
)

func TestConntrackMax(t *testing.T) {
	for _, c := range [][4]int{{32768, 131072, 2, 131072}, {32768, 131072, 8, 262144}, {32768, 131072, 100, 1 << 20}, {0, 131072, 8, 0}} {
		if got := conntrackMax(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("conntrackMax(%d, %d, %d cores) = %d, want %d", c[0], c[1], c[2], got, c[3])
		}
	}
}

// TestPrepare sets a host's settings: limits are raised and never lowered,
// and a host that refuses is no error.
func TestPrepare(t *testing.T) {
	root := t.TempDir()
	const dir = "/proc/sys/net/netfilter/nf_conntrack_"
	files := map[string]string{dir + "max": "1000", dir + "tcp_timeout_established": "432000", dir + "tcp_timeout_close_wait": "60",
		dir + "tcp_be_liberal": "0", dir + "udp_timeout": "30",
		"/proc/self/oom_score_adj": "0", "/sys/module/nf_conntrack/parameters/hashsize": "100"}
	for path, data := range files {
		if err := os.MkdirAll(filepath.Dir(root+path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+path, []byte(data+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var c config.KubeProxyConfiguration
	config.Defaults(&c)
	c.Conntrack.Min, c.Conntrack.MaxPerCore = ptr.To(int32(4000)), ptr.To(int32(1))
	prepare(&c, slog.New(slog.DiscardHandler), root)
	for path, want := range map[string]string{dir + "max": "4000", dir + "tcp_timeout_established": "86400",
		dir + "tcp_timeout_close_wait": "3600", dir + "tcp_be_liberal": "0",
		dir + "udp_timeout": "30", "/proc/self/oom_score_adj": "-999", "/sys/module/nf_conntrack/parameters/hashsize": "1000"} {
		if got, err := os.ReadFile(root + path); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: %q, want %s (%v)", path, got, want, err)
		}
	}
	c.Conntrack.Min = ptr.To(int32(2000))
	prepare(&c, slog.New(slog.DiscardHandler), root)
	if got, _ := os.ReadFile(root + dir + "max"); strings.TrimSpace(string(got)) != "4000" {
		t.Errorf("the limit was lowered to %s", got)
	}
	prepare(&c, slog.New(slog.DiscardHandler), filepath.Join(root, "nothing"))
}

// TestStrip checks that nothing the model reads is lost.
func TestStrip(t *testing.T) {
	s := newStripper()
	in := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{discoveryv1.LabelServiceName: "svc",
		"x": "y"},
		Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "now", "x": "y"}}, Endpoints: []discoveryv1.Endpoint{
		{Addresses: []string{"10.0.0.1"}, NodeName: ptr.To("n"), TargetRef: &corev1.ObjectReference{},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Terminating: ptr.To(false)},
			Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}}}}
	if _, err := s.strip(in); err != nil {
		t.Fatal(err)
	}
	e := in.Endpoints[0]
	if in.Labels[discoveryv1.LabelServiceName] != "svc" || len(in.Labels) != 1 || len(in.Annotations) != 1 || e.TargetRef != nil ||
		*e.NodeName != "n" || !*e.Conditions.Ready ||
		*e.Conditions.Terminating || e.Conditions.Serving != nil || e.Hints.ForZones[0].Name != "z" || e.Addresses[0] != "10.0.0.1" {
		t.Errorf("stripped: %+v", in)
	}
}

// TestWatchFile ends the proxy when its configuration changes, also by a
// symbolic link, and not when it is only touched.
func TestWatchFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	write := func(name, data string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one", "a")
	if err := os.Symlink("one", path); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	stop, err := watchFile(ctx, path, cancel)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	write("one", "a")
	write("two", "b")
	if ctx.Err() != nil {
		t.Fatal("ended without a change")
	}
	if err := os.Symlink("two", path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
		if !strings.Contains(context.Cause(ctx).Error(), "has changed") {
			t.Error(context.Cause(ctx))
		}
	case <-time.After(20 * time.Second):
		t.Error("a change of the configuration went unnoticed")
	}
}
