package cli

import (
	"testing"

	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/cluster"
)

// TestHardenedIsAChoice: no flag leaves the choice to what is kept, and the
// flag can be turned off.
func TestHardenedIsAChoice(t *testing.T) {
	for _, test := range []struct {
		args []string
		want *bool
	}{
		{nil, nil}, {[]string{"--hardened"}, ptr.To(true)}, {[]string{"--hardened=1"}, ptr.To(true)},
		{[]string{"--hardened=false"}, ptr.To(false)},
	} {
		for _, role := range []cluster.Role{cluster.RoleWhole, cluster.RoleNode} {
			cmd := upCommand()
			if role == cluster.RoleNode {
				cmd = joinCommand()
			}
			if err := cmd.Flags().Parse(test.args); err != nil {
				t.Fatal(err)
			}
			if got := given(cmd.Flags(), "hardened"); !ptr.Equal(got, test.want) {
				t.Errorf("%s %q: %v, want %v", cmd.Name(), test.args, got, test.want)
			}
		}
	}
	if got := given(serverCommand().Flags(), "hardened"); got != nil {
		t.Errorf("a server without containers is hardened: %v", *got)
	}
}
