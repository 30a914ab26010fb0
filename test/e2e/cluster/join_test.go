package cluster

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestJoin lets two hosts join a control plane, with every way to get in
// wrong first, and stops and starts one of them.
func TestJoin(t *testing.T) {
	r := kit.NewHosts(t)
	a, b := r.AddHost("a"), r.AddHost("b")
	line := r.JoinArgs()
	server, token, hash := line[0], line[2], line[4]
	before := kit.ReadHostState(t, a.Dir)
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
		out, err := a.TryJoin(wrong.args...)
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
	for _, left := range kit.ReadHostState(t, a.Dir).LeftSince(before) {
		t.Errorf("the failed joins left %s", left)
	}

	a.Join()
	b.Join()
	id := strings.Split(token, ".")[0]
	if out := r.Berth("token", "list", "--data-dir", r.Dir); !strings.Contains(out, id) {
		t.Errorf("token list lacks %s:\n%s", id, out)
	}
	r.Berth("token", "delete", id, "--data-dir", r.Dir)
	r.Apply(kit.SpreadManifest)
	pods := r.WaitReady("default", "app=spread", 2)
	if pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		t.Errorf("both pods are on %s", pods[0].Spec.NodeName)
	}
	for i := range pods {
		if out := r.Kubectl("exec", pods[i].Name, "--", "hostname"); strings.TrimSpace(out) != pods[i].Name {
			t.Errorf("hostname of %s on %s: %q", pods[i].Name, pods[i].Spec.NodeName, out)
		}
		r.Kubectl("logs", pods[i].Name)
	}

	// A node needs neither server nor token again.
	if out, err := a.Try("down", "--data-dir", a.Dir); err != nil {
		t.Fatalf("down: %v\n%s", err, out)
	}
	if out, err := a.Try("join", "--detach", "--data-dir", a.Dir); err != nil {
		t.Fatalf("joining again: %v\n%s", err, out)
	}
	r.WaitReady("default", "app=spread", 2)
	if out, err := a.Try("why", "--data-dir", a.Dir, "node", "a"); err != nil || !strings.Contains(out, "registered") {
		t.Errorf("why node a: %v\n%s", err, out)
	}
}
