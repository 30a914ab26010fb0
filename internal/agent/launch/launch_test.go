package launch

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/config"
)

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func kernel(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, setting := range kernelSettings {
		write(t, root, "proc/sys/"+setting.path, "0\n")
	}
	write(t, root, "proc/swaps", "Filename Type Size Used Priority\n")
	return root
}

func TestSwapIsRefused(t *testing.T) {
	root := kernel(t)
	log := slog.New(slog.DiscardHandler)
	if err := prepare(&kubeletv1beta1.KubeletConfiguration{}, log, root); err != nil {
		t.Errorf("without swap: %v", err)
	}
	write(t, root, "proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n")
	if err := prepare(&kubeletv1beta1.KubeletConfiguration{}, log, root); err == nil || !strings.Contains(err.Error(), "/dev/sda2") {
		t.Errorf("with swap: %v", err)
	}
	off := false
	if err := prepare(&kubeletv1beta1.KubeletConfiguration{FailSwapOn: &off}, log, root); err != nil {
		t.Errorf("with swap allowed: %v", err)
	}
}

func TestKernelSettingsAreMadeOrDemanded(t *testing.T) {
	root, log := kernel(t), slog.New(slog.DiscardHandler)
	if err := tuneKernel(true, log, root); err == nil || !strings.Contains(err.Error(), "kernel.panic is 0, want 10") {
		t.Errorf("protected: %v", err)
	}
	if err := tuneKernel(false, log, root); err != nil {
		t.Error(err)
	}
	if err := tuneKernel(true, log, root); err != nil {
		t.Errorf("after tuning: %v", err)
	}
}

func TestLockIsGivenUpWhenWanted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, contended, err := lock(path, true)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	<-contended
	other.Close()
	unlock()
	if _, _, err := lock("", true); err == nil {
		t.Error("contention without a lock file was accepted")
	}
}

func TestIdentity(t *testing.T) {
	for args, want := range map[string]string{
		"--hostname-override= Node-1 ":                     "",
		"--node-ip=192.0.2.1,192.0.2.2":                    "different families",
		"--node-ip=0.0.0.0,::":                             "only allowed alone",
		"--node-labels=node-restriction.kubernetes.io/a=b": "may not set",
		"--node-labels=a=b,topology.kubernetes.io/zone=z":  "",
		"--cloud-provider=aws":                             "not supported",
		"--cloud-provider=external --node-ip=::":           "",
	} {
		fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
		flags := config.AddFlags(fs)
		parts := strings.Split(args, " --")
		for i := 1; i < len(parts); i++ {
			parts[i] = "--" + parts[i]
		}
		if err := fs.Parse(parts); err != nil {
			t.Fatal(err)
		}
		effective, err := config.Load(flags)
		if err != nil {
			t.Fatal(err)
		}
		id, err := identity(Config{Effective: effective, Log: slog.New(slog.DiscardHandler)})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
		if strings.Contains(args, "Node-1") && id.Name != "node-1" {
			t.Errorf("name is %q", id.Name)
		}
	}
}
