package proxy

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// TestCheckKernel passes on every kernel that the other tests need.
func TestCheckKernel(t *testing.T) {
	netnstest.New(t) // skips without root
	if err := CheckKernel(slog.New(slog.NewTextHandler(t.Output(), nil))); err != nil {
		t.Error(err)
	}
}

func TestWarnOfSCTP(t *testing.T) {
	var out bytes.Buffer
	log, setting := slog.New(slog.NewTextHandler(&out, nil)), filepath.Join(t.TempDir(), "setting")
	warnOfSCTP(log, setting)
	if !strings.Contains(out.String(), "CONFIG_NF_CT_PROTO_SCTP") {
		t.Errorf("no warning where SCTP is not tracked: %q", out.String())
	}
	out.Reset()
	if err := os.WriteFile(setting, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if warnOfSCTP(log, setting); out.Len() > 0 {
		t.Errorf("a warning where SCTP is tracked: %q", out.String())
	}
}
