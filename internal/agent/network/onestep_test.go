package network

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestOneStep runs the plugin of the bundle as a runtime does: with its network
// a pod gets an address and host ports, and gives both back at its end, though
// its link goes with its namespace only.
func TestOneStep(t *testing.T) {
	bundle := os.Getenv("BERTH_BUNDLE")
	if bundle == "" {
		t.Skip("BERTH_BUNDLE is not set")
	}
	space, bridge := fmt.Sprintf("onestep-%d", os.Getpid()), fmt.Sprintf("os%d", os.Getpid())
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}
	run("ip", "netns", "add", space)
	ports := exec.Command("nft", "list", "table", "ip", "cni_hostport")
	mine := ports.Run() != nil // the standard plugin leaves its empty table
	t.Cleanup(func() {
		if mine {
			_ = exec.Command("nft", "delete", "table", "ip", "cni_hostport").Run()
		}
		_ = exec.Command("ip", "netns", "del", space).Run()
		_ = exec.Command("ip", "link", "del", bridge).Run()
	})
	leases := t.TempDir()
	text, err := cniConfig([]string{"10.217.5.0/24"}, CNIOptions{Name: "onestep", Bridge: bridge, DataDir: leases, OneStep: true})
	if err != nil {
		t.Fatal(err)
	}
	call := func(command, netns string, ports int) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(bundle, "berth-net"))
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_PATH="+bundle,
			"CNI_NETNS="+netns)
		cmd.Stdin = bytes.NewReader(single(t, text, ports))
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v: %s%s", command, err, out.String(), errs.String())
		}
		return out.String()
	}
	held := func() int {
		found, _ := filepath.Glob(filepath.Join(leases, "onestep", "10.*"))
		return len(found)
	}
	netns := "/var/run/netns/" + space
	for _, port := range []int{0, 28599} {
		if got := call("ADD", netns, port); !strings.Contains(got, "10.217.5.") {
			t.Fatalf("ADD answered %s", got)
		}
		if addr := run("ip", "-n", space, "addr", "show", "dev", "eth0"); !strings.Contains(addr, "10.217.5.") || held() != 1 {
			t.Errorf("after ADD the pod has %s and %d addresses are held", addr, held())
		}
		if mapped := strings.Contains(run("nft", "list", "ruleset"), "28599"); mapped != (port > 0) {
			t.Errorf("with host port %d: mapped is %v", port, mapped)
		}
		for range 2 { // a runtime may ask again
			call("DEL", netns, port)
			if addr := run("ip", "-n", space, "addr", "show", "dev", "eth0"); strings.Contains(addr, "10.217.5.") || held() != 0 {
				t.Errorf("after DEL the pod has %s and %d addresses are held", addr, held())
			}
		}
		if strings.Contains(run("nft", "list", "ruleset"), "28599") {
			t.Error("after DEL the host port is still mapped")
		}
		run("ip", "netns", "del", space)
		call("DEL", netns, port) // the namespace is gone
		call("DEL", "", port)
		for deadline := time.Now().Add(time.Minute); strings.Contains(run("ip", "link", "show", "type", "veth"), "master "+bridge); {
			if time.Now().After(deadline) {
				t.Fatal("the link outlives its namespace")
			}
		}
		run("ip", "netns", "add", space)
	}
}

// single makes the configuration of a list's only plugin, as runtimes do.
func single(t *testing.T, list []byte, hostPort int) []byte {
	t.Helper()
	var l struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(list, &l); err != nil || len(l.Plugins) != 1 {
		t.Fatalf("%d plugins, %v", len(l.Plugins), err)
	}
	p := l.Plugins[0]
	p["cniVersion"], p["name"] = l.CNIVersion, l.Name
	if hostPort > 0 {
		p["runtimeConfig"] = map[string]any{"portMappings": []map[string]any{{"hostPort": hostPort, "containerPort": 80,
			"protocol": "tcp"}}}
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
