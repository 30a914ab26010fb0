package e2e

import (
	"strings"
	"testing"
)

// TestJoin lets two machines join a control plane, with every way to get in
// wrong first, and stops and starts one of them.
func TestJoin(t *testing.T) {
	r := newRoom(t)
	a, b := r.machine("a"), r.machine("b")
	line := r.invitation()
	server, token, hash := line[0], line[2], line[4]
	before := look(t, a.dir)
	for _, wrong := range []struct {
		name string
		args []string
		says []string
	}{
		{"no server", nil, []string{"which cluster?", "berth token create"}},
		{"no token", []string{server}, []string{"give a --token"}},
		{"token alone", []string{server, "--token", token}, []string{"--ca-hash or --ca-file"}},
		{"not a token", []string{server, "--token", "abc", "--ca-hash", hash}, []string{"--token", "6 letters"}},
		{"another cluster", []string{server, "--token", token, "--ca-hash", "sha256:" + strings.Repeat("0", 64)},
			[]string{"does not belong to a CA"}},
		{"unknown token", []string{server, "--token", "aaaaaa.bbbbbbbbbbbbbbbb", "--ca-hash", hash},
			[]string{"credentials are not accepted"}},
	} {
		out, err := a.tryJoin(wrong.args...)
		if err == nil {
			t.Fatalf("%s: joined\n%s", wrong.name, out)
		}
		for _, want := range wrong.says {
			if !strings.Contains(out, want) {
				t.Errorf("%s: the message lacks %q:\n%s", wrong.name, want, out)
			}
		}
		if strings.Contains(out, token) {
			t.Errorf("%s: the message shows the token", wrong.name)
		}
	}
	for _, left := range look(t, a.dir).left(before) {
		t.Errorf("the failed joins left %s", left)
	}

	a.join()
	b.join()
	id := strings.Split(token, ".")[0]
	if out := r.berth("token", "list", "--data-dir", r.dir); !strings.Contains(out, id) {
		t.Errorf("token list lacks %s:\n%s", id, out)
	}
	r.berth("token", "delete", id, "--data-dir", r.dir)
	r.apply(spread)
	pods := r.waitReady("default", "app=spread", 2)
	if pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		t.Errorf("both pods are on %s", pods[0].Spec.NodeName)
	}
	for i := range pods {
		if out := r.kubectl("exec", pods[i].Name, "--", "hostname"); strings.TrimSpace(out) != pods[i].Name {
			t.Errorf("hostname of %s on %s: %q", pods[i].Name, pods[i].Spec.NodeName, out)
		}
		r.kubectl("logs", pods[i].Name)
	}

	// A node needs neither server nor token again.
	if out, err := a.try("down", "--data-dir", a.dir); err != nil {
		t.Fatalf("down: %v\n%s", err, out)
	}
	if out, err := a.try("join", "--detach", "--data-dir", a.dir); err != nil {
		t.Fatalf("joining again: %v\n%s", err, out)
	}
	r.waitReady("default", "app=spread", 2)
	if out, err := a.try("why", "--data-dir", a.dir, "node", "a"); err != nil || !strings.Contains(out, "registered") {
		t.Errorf("why node a: %v\n%s", err, out)
	}
}

const spread = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: spread}
spec:
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: c, image: "berth.dev/toolbox:1", args: [serve, "8080"]}
---
apiVersion: v1
kind: Service
metadata: {name: spread}
spec:
  selector: {app: spread}
  ports: [{port: 80, targetPort: 8080}]
`
