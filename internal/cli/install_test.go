package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// installRoot is a host with systemd below a directory: its systemctl records
// what it is asked, and a start makes the cluster's kubeconfig.
func installRoot(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	t.Setenv("HOME", "/root")
	t.Setenv("SUDO_USER", "")
	t.Setenv("BERTH_DATA_DIR", "")
	for _, dir := range []string{"run/systemd/system", "usr/bin", "bundle", "root"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const kubeconfig = `apiVersion: v1
kind: Config
current-context: berth
clusters: [{name: berth, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: admin, user: {token: secret}}]
contexts: [{name: berth, context: {cluster: berth, user: admin}}]
`
	script := "#!/bin/sh\necho \"$@\" >> " + root + "/asked\n[ \"$1\" != start ] && [ \"$1\" != restart ] && exit 0\n" +
		"mkdir -p " + root + "/var/lib/berth\ncat > " + root + "/var/lib/berth/admin.kubeconfig <<'X'\n" + kubeconfig + "X\n"
	for name, text := range map[string]string{"usr/bin/systemctl": script, "bundle/berth": "program", "bundle/containerd": "runtime"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestInstall: the flags of the role become the file that the service reads, and
// a second run with one more flag keeps the others.
func TestInstall(t *testing.T) {
	root := installRoot(t)
	bundle := "--bundle-dir=" + filepath.Join(root, "bundle")
	out, err := try(t, "install", "--dry-run", "--root", root, bundle, "--node-name=n1")
	if err != nil || !strings.Contains(out, "node-name: n1") || !strings.Contains(out, "ExecStart=/usr/local/bin/berth up") {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(root, "etc")); err == nil {
		t.Fatal("a dry run writes")
	}
	if out, err := try(t, "install", "--root", root, bundle, "--node-name=n1", "--tls-san=a,b"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := try(t, "install", "--root="+root, bundle, "--api-port", "7443", "--network-policy=false"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(root, "etc/berth/config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(text), "lists them.\n")
	if want := "api-port: \"7443\"\nnetwork-policy: false\nnode-name: n1\ntls-san:\n- a\n- b\n"; body != want {
		t.Errorf("%s\nwant %s", body, want)
	}
	cmd := upCommand()
	if err := fillFlags(cmd.Flags(), filepath.Join(root, "etc/berth/config.yaml"), os.LookupEnv); err != nil ||
		cmd.Flags().Lookup("api-port").Value.String() != "7443" || cmd.Flags().Lookup("tls-san").Value.String() != "[a,b]" {
		t.Errorf("the service does not read it: %v", err)
	}
	asked, err := os.ReadFile(filepath.Join(root, "asked"))
	if want := "daemon-reload\nenable berth.service\nrestart berth.service\n"; err != nil || string(asked) != want+want {
		t.Errorf("systemctl was asked %q", asked)
	}
	if text, err := os.ReadFile(filepath.Join(root, "root/.kube/config")); err != nil || !bytes.Contains(text, []byte("berth")) {
		t.Errorf("the caller has no kubeconfig: %v", err)
	}
	completion, err := os.ReadFile(filepath.Join(root, "usr/local/share/bash-completion/completions/berth"))
	if err != nil || !bytes.Contains(completion, []byte("__start_berth")) {
		t.Errorf("no completion: %v", err)
	}
}

// TestUninstallAsks: without an answer nothing goes.
func TestUninstallAsks(t *testing.T) {
	root := installRoot(t)
	if out, err := try(t, "install", "--root", root, "--bundle-dir="+filepath.Join(root, "bundle")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.RemoveAll(filepath.Join(root, "var")); err != nil { // no cluster of this host
		t.Fatal(err)
	}
	out, err := try(t, "uninstall", "--root", root)
	if err == nil || !strings.Contains(out, "removes:") || !strings.Contains(err.Error(), "--yes") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/local/bin/berth")); os.IsNotExist(err) {
		if _, err := os.Lstat(filepath.Join(root, "usr/local/bin/berth")); err != nil {
			t.Error("it is removed without an answer")
		}
	}
	if out, err := try(t, "uninstall", "--root", root, "--yes"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, gone := range []string{"etc", "usr/local", "root/.kube"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); err == nil {
			t.Errorf("%s is left", gone)
		}
	}
	if _, err := try(t, "uninstall", "--root", root, "--yes"); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("twice: %v", err)
	}
}

// TestInstallRefuses: mistakes are named before anything is written.
func TestInstallRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--role=agent"}, "allowed are up, server and join"},
		{[]string{"--detach"}, "--detach: a service does without it"},
		{[]string{"--ephemeral"}, "--ephemeral: a service does without it"},
		{[]string{"--no-such-flag"}, "unknown flag: --no-such-flag"},
		{[]string{"https://s:6443"}, `unknown argument "https://s:6443"`},
		{[]string{"--data-dir=x"}, "a service needs a path from the root"},
	} {
		root := installRoot(t)
		_, err := try(t, append([]string{"install", "--root=" + root, "--bundle-dir=" + root + "/bundle"}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
		if _, err := os.Stat(root + "/etc"); err == nil {
			t.Errorf("%v: something was written", c.args)
		}
	}
	root := installRoot(t)
	if err := os.RemoveAll(root + "/run"); err != nil {
		t.Fatal(err)
	}
	_, err := try(t, "install", "--root="+root, "--bundle-dir="+root+"/bundle")
	if err == nil || !strings.Contains(err.Error(), "neither systemd nor OpenRC runs on this host") {
		t.Errorf("a host without a service manager: %v", err)
	}
	if out, err := try(t, "install", "--root="+root, "--bundle-dir="+root+"/bundle", "--no-service"); err != nil {
		t.Errorf("the files alone: %v\n%s", err, out)
	}
}

// TestCheckCommand: both outputs say the same, and an unknown role is refused.
func TestCheckCommand(t *testing.T) {
	dir := t.TempDir()
	text, textErr := try(t, "check", "--role=server", "--data-dir="+dir, "--ports-from=29940", "--node-name=n1")
	out, jsonErr := try(t, "check", "--role=server", "--data-dir="+dir, "--ports-from=29940", "--node-name=n1", "-o", "json")
	var answer struct {
		OK       bool
		Findings []struct{ Level, Name, Message, Remedy string }
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || len(answer.Findings) < 4 {
		t.Fatalf("%v\n%s", err, out)
	}
	if (textErr == nil) != answer.OK || (jsonErr == nil) != answer.OK {
		t.Errorf("text: %v, JSON: %v, ok: %t", textErr, jsonErr, answer.OK)
	}
	for _, f := range answer.Findings {
		if !strings.Contains(text, f.Message) {
			t.Errorf("the text lacks %q", f.Message)
		}
	}
	out, err := try(t, "check", "--data-dir="+dir, "--role=server", "--ports-from=29940", "--node-name=Not_A_Name")
	if err == nil || !strings.Contains(out, "FAIL  hostname") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := try(t, "check", "--role=king"); err == nil || !strings.Contains(err.Error(), "allowed are up, server, join, agent") {
		t.Errorf("%v", err)
	}
}
