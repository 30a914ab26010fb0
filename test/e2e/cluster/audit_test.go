package cluster

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// testAudit reads the audit log of the cluster as it is by default: it names
// each controller that wrote, and no part of berth was ever refused.
func testAudit(t *testing.T, c *kit.Cluster) {
	raw, err := os.ReadFile(filepath.Join(c.Dir, "logs", "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	type event struct {
		Verb, RequestURI string
		User             struct{ Username string }
		ObjectRef        struct{ Resource, Subresource string }
		ResponseStatus   struct{ Code int }
	}
	const account = "system:serviceaccount:kube-system:"
	missing := map[string]bool{
		account + "deployment-controller create replicasets": true, account + "replicaset-controller create pods": true,
		"system:kube-scheduler create pods/binding": true, account + "endpointslice-controller create endpointslices": true,
		account + "dns-publisher create services": true, account + "node-controller patch nodes": true,
	}
	for line := range bytes.Lines(raw) {
		var e event
		if json.Unmarshal(line, &e) != nil {
			continue // a line that a kill cut off
		}
		what := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			what += "/" + e.ObjectRef.Subresource
		}
		delete(missing, e.User.Username+" "+e.Verb+" "+what)
		ours := strings.HasPrefix(e.User.Username, account) || e.User.Username == "system:kube-scheduler" ||
			e.User.Username == "system:kube-proxy"
		if ours && e.ResponseStatus.Code == 403 {
			t.Errorf("%s was refused: %s %s", e.User.Username, e.Verb, e.RequestURI)
		}
	}
	for what := range missing {
		t.Errorf("the audit log does not say: %s", what)
	}
}
