package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

const (
	manifestOfKind = `
apiVersion: example.com/v1
kind: Boat
metadata: {name: one}
spec: {length: 12}
`
	manifestOfDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  names: {kind: Boat, plural: boats, singular: boat, listKind: BoatList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
	manifestOfShop = `
apiVersion: v1
kind: ConfigMap
metadata: {name: shop, namespace: shop}
data: {open: "yes"}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: stays, annotations: {berth.dev/keep: ""}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: foreign}
data: {by: manifest}
`
	manifestWithFaults = `
apiVersion: v1
kind: ConfigMap
metadata: {name: fine}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: bad}
spec:
  replicas: -1
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: x}]}}
---
a: [
`
)

// TestManifests puts files into the directory of manifests before the first
// start and while the cluster runs, and kills it while it applies.
func TestManifests(t *testing.T) {
	c := kit.NewCluster(t)
	dir := filepath.Join(c.Dir, "manifests")
	kit.Must(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o700))
	write := func(name, text string) {
		t.Helper()
		tmp := filepath.Join(dir, "."+filepath.Base(name))
		kit.Must(t, os.WriteFile(tmp, []byte(text), 0o600))
		kit.Must(t, os.Rename(tmp, filepath.Join(dir, name)))
	}
	there := func(what ...string) {
		t.Helper()
		c.Eventually(strings.Join(what, " ")+" is there", func() (bool, string) {
			out, err := c.TryKubectl("", append([]string{"get", "-o", "name"}, what...)...)
			return err == nil && strings.TrimSpace(out) != "", out
		})
	}
	gone := func(what ...string) {
		t.Helper()
		c.Eventually(strings.Join(what, " ")+" is gone", func() (bool, string) {
			out, err := c.TryKubectl("", append([]string{"get", "--ignore-not-found", "-o", "name"}, what...)...)
			return err == nil && strings.TrimSpace(out) == "", out
		})
	}
	status := func(words ...string) {
		t.Helper()
		c.Eventually(fmt.Sprintf("status says %q", words), func() (bool, string) {
			out, _ := c.TryBerth("status", "--data-dir", c.Dir)
			for _, w := range words {
				if !strings.Contains(out, w) {
					return false, out
				}
			}
			return true, out
		})
	}
	write("a-boat.yaml", manifestOfKind)
	write("sub/b-boats.yaml", manifestOfDefinition)
	c.Up()
	there("boat", "one")
	c.Kubectl("create", "configmap", "foreign", "--from-literal=by=hand")

	write("shop.yaml", manifestOfShop)
	write("faults.yaml", manifestWithFaults)
	there("configmap", "shop", "-n", "shop")
	there("configmap", "fine")
	status("BAD  manifests", "faults.yaml document 2, Deployment.apps bad, spec.replicas: ", "faults.yaml document 3: ")
	c.Eventually("an event names the fault", func() (bool, string) {
		out := c.Kubectl("get", "events", "-n", "kube-system", "--field-selector", "reason=ApplyManifestFailed", "-o",
			"jsonpath={.items[*].message}")
		return strings.Contains(out, "spec.replicas"), out
	})
	write("faults.yaml", strings.Replace(manifestWithFaults, "replicas: -1", "replicas: 0", 1))
	there("deployment", "bad")
	write("faults.yaml", "")
	gone("deployment", "bad")
	gone("configmap", "fine")
	status("ok   manifests")

	kit.Must(t, os.Remove(filepath.Join(dir, "shop.yaml")))
	gone("configmap", "shop", "-n", "shop")
	there("namespace", "shop") // with it would go what others put there
	there("configmap", "stays")
	if out := c.Kubectl("get", "configmap", "foreign", "-o", "jsonpath={.data.by}"); out != "manifest" {
		t.Errorf("the manifest's field says %q", out)
	}

	var many strings.Builder
	for i := range 400 {
		fmt.Fprintf(&many, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: many-%d, labels: {many: all}}\n", i)
	}
	write("many.yaml", many.String())
	there("configmap", "-l", "many=all")
	kit.KillProcess(t, c.PID())
	kit.Must(t, os.Remove(filepath.Join(dir, "many.yaml")))
	c.Disconnect()
	c.Up()
	gone("configmap", "-l", "many=all")
	there("configmap", "foreign")
	there("boat", "one")
	status("ok   manifests")
}
