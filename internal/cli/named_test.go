package cli

import (
	"testing"

	"github.com/berth-dev/berth/internal/cluster/host"
)

// TestWhichCluster: a directory in the environment wins over a name there, and a
// name that is not there leads to no other cluster.
func TestWhichCluster(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, c := range []struct{ dir, name, wantDir, wantName string }{
		{"", "", host.DefaultDataDir, ""},
		{"/x", "", "/x", ""},
		{"/x", "one", "/x", ""},
		{"", "not-there", "/nonexistent/not-there", "not-there"},
	} {
		t.Setenv("BERTH_DATA_DIR", c.dir)
		t.Setenv("BERTH_NAME", c.name)
		if got := defaultDataDir(); got != c.wantDir {
			t.Errorf("%+v: directory %q", c, got)
		}
		if got := nameOfEnvironment(); got != c.wantName {
			t.Errorf("%+v: name %q", c, got)
		}
	}
}
