package cluster

import (
	"strings"
	"testing"
)

func TestCloudFlagsGoTogether(t *testing.T) {
	for _, c := range []struct{ provider, config, fault string }{
		{"", "", ""},
		{"inventory", "machines.yaml", ""},
		{"inventory", "", "give both or neither"},
		{"", "machines.yaml", "give both or neither"},
		{"aws", "machines.yaml", `--cloud-provider "aws": not built in`},
	} {
		err := (&Config{CloudProvider: c.provider, CloudConfig: c.config}).validateCloud()
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q with %q: %v, want %q", c.provider, c.config, err, c.fault)
		}
	}
}
