package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func inOrder(c *cobra.Command) []*cobra.Command {
	return slices.SortedFunc(slices.Values(c.Commands()), func(a, b *cobra.Command) int { return cmp.Compare(a.Name(), b.Name()) })
}

// tree writes every command with its flags: what users and scripts rely on.
func tree(b *strings.Builder, c *cobra.Command, path string) {
	path = strings.TrimSpace(path + " " + c.Name())
	fmt.Fprintf(b, "%s: %s\n", path, c.Short)
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return // cobra adds it when it likes
		}
		short := ""
		if f.Shorthand != "" {
			short = " -" + f.Shorthand
		}
		fmt.Fprintf(b, "  --%s%s %s\n", f.Name, short, f.Value.Type())
	})
	for _, sub := range inOrder(c) {
		tree(b, sub, path)
	}
}

// TestCommandTree: a command or a flag that goes, comes or changes its type shows
// in testdata/commands.txt. UPDATE_GOLDEN=1 writes it.
func TestCommandTree(t *testing.T) {
	var b strings.Builder
	tree(&b, rootCommand(), "")
	golden := filepath.Join("testdata", "commands.txt")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	was := map[string]bool{}
	for line := range strings.Lines(string(want)) {
		was[line] = true
	}
	if b.String() == string(want) {
		return
	}
	for line := range strings.Lines(b.String()) {
		if !was[line] {
			t.Errorf("new: %s", line)
		}
	}
	t.Error("the commands differ from testdata/commands.txt: UPDATE_GOLDEN=1 writes it")
}

// TestFlagsNameWhatTheyTake: the help prints the first word between back quotes as
// the name of a flag's value, so a quoted command line would stand there.
func TestFlagsNameWhatTheyTake(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); strings.Contains(name, " ") {
				t.Errorf("%s --%s takes %q, says its help", c.CommandPath(), f.Name, name)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand())
}

// TestHelpInSections: the flags of a role stand under headings, each once.
func TestHelpInSections(t *testing.T) {
	for command, want := range map[string][]string{
		"up":     {"Start", "Cluster", "Node lifecycle", "Snapshot", "API server", "Node"},
		"server": {"Start", "Cluster", "Node lifecycle", "Snapshot", "API server"},
		"join":   {"Start", "Join", "Node"},
	} {
		out, err := try(t, command, "--help")
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for _, heading := range want {
			i := strings.Index(out[at:], "\n"+heading+" flags:\n")
			if i < 0 {
				t.Fatalf("%s: no heading %q after the one before in\n%s", command, heading, out)
			}
			at += i
		}
		c, _, err := rootCommand().Find([]string{command})
		if err != nil {
			t.Fatal(err)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if n := len(regexp.MustCompile(`(?m)^ +(-., )?--`+f.Name+"[ \\[]").FindAllString(out, -1)); !f.Hidden && n != 1 {
				t.Errorf("%s --%s stands %d times in the help", command, f.Name, n)
			}
		})
	}
}

// try runs a command line in this process.
func try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := rootCommand()
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// TestRefusedCommandLines: each mistake is refused before anything is touched,
// with a message that names the flag or word and what is allowed.
func TestRefusedCommandLines(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("BERTH_DATA_DIR", dir)
	t.Setenv("KUBECONFIG", "")
	none := filepath.Join(dir, "none")
	for _, c := range []struct {
		args string
		want []string
	}{
		{"sail", []string{`unknown command "sail"`}},
		{"up now", []string{`unknown command "now"`}},
		{"up --node-ip here", []string{`--node-ip "here"`, "not an IP address"}},
		{"up --cluster-cidr ten", []string{`--cluster-cidr "ten"`, "10.244.0.0/16"}},
		{"up --cluster-cidr 10.0.0.0/8 --service-cidr 10.96.0.0/16", []string{"--cluster-cidr 10.0.0.0/8", "--service-cidr 10.96.0.0/16",
			"overlap"}},
		{"up --service-cidr 10.96.0.0/16,fd00::/112", []string{"--service-cidr fd00::/112", "--cluster-cidr"}},
		{"up --network pigeon", []string{"--network", "pigeon"}},
		{"up --load-balancer maybe", []string{"--load-balancer", `"maybe"`, "node", "none", "pool"}},
		{"up --load-balancer pool", []string{"--load-balancer=pool needs a pool", "--load-balancer-pool NAME=CIDR"}},
		{"up --cluster-cidr 10.244.0.0/16 --load-balancer-pool lab=10.244.7.0/24",
			[]string{"--load-balancer-pool lab", "--cluster-cidr 10.244.0.0/16"}},
		{"up --log-level loud", []string{`--log-level "loud"`, "debug, info, warn and error"}},
		{"up --log-format xml", []string{`--log-format "xml"`, "text and json"}},
		{"up --certificate-lifetime 1s", []string{"--certificate-lifetime 1s", "at least"}},
		{"up --cloud-provider sky --cloud-config x", []string{`--cloud-provider "sky"`, "inventory"}},
		{"up --cloud-provider inventory", []string{"--cloud-config", "both or neither"}},
		{"up --controllers magic", []string{"magic"}},
		{"up --data-dir /" + strings.Repeat("d", 120), []string{"--data-dir", "bytes too long", "shorter"}},
		{"join a b", []string{"at most 1 arg"}},
		{"token create --ttl -1s", []string{"--ttl -1s", "at least 1s"}},
		{"token create", []string{dir, "admin"}},
		{"token list", []string{dir, "control plane on this host"}},
		{"token delete", []string{"accepts 1 arg"}},
		{"secrets rotate", []string{dir}},
		{"status --output yaml", []string{`--output "yaml"`, "text and json"}},
		{"why ship x", []string{`"ship"`, "node, pod, service"}},
		{"events --for ship/x", []string{`--for "ship/x"`, "KIND/NAME"}},
		{"events -o yaml", []string{`--output "yaml"`, "text and json"}},
		{"top ships", []string{`"ships"`}},
		{"top --sort age", []string{`--sort "age"`, "cpu, memory and name"}},
		{"why pod", []string{"accepts 2 arg"}},
		{"why pod x -o yaml", []string{`--output "yaml"`, "text and json"}},
		{"fleet", []string{"--kubeconfig is missing", "KUBECONFIG"}},
		{"fleet --kubeconfig " + none, []string{"--kubeconfig", none}},
		{"simulate --nonsense", []string{"unknown flag: --nonsense"}},
	} {
		out, err := try(t, strings.Fields(c.args)...)
		if err == nil {
			t.Errorf("berth %s was accepted:\n%s", c.args, out)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("berth %s: %q is missing in: %v", c.args, want, err)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("a refused command line left files: %v, %v", left, err)
	}
}

// TestStatusOfNothing: a cluster that does not run is no error text, and the
// command fails.
func TestStatusOfNothing(t *testing.T) {
	if _, err := try(t, "status", "--data-dir", t.TempDir()); err != errSilent { //nolint:errorlint // this very value
		t.Errorf("status of nothing: %v", err)
	}
}

// TestHelpOfEveryCommand: every command explains itself and promises only flags
// that it has.
func TestHelpOfEveryCommand(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s says nothing of itself", c.CommandPath())
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" && !f.Hidden && f.Deprecated == "" {
				t.Errorf("%s --%s says nothing of itself", c.CommandPath(), f.Name)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand())
}
