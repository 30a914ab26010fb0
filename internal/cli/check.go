package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/cluster/hostcheck"
)

// checkRoles are what `berth check` and `berth install` know.
var checkRoles = []string{"up", "server", "join", "agent"}

func checkCommand() *cobra.Command {
	var role, output string
	cfg := cluster.Config{NetworkPolicy: true}
	var portsFrom int
	cmd := &cobra.Command{
		Use:   "check",
		Short: "tell what this host lacks before a start, and the command that provides it",
		Long: "Looks at the kernel, cgroups, tools, ports, space and other programs of this host, and changes nothing. " +
			"It fails if a start would. Commands are those of Debian, Ubuntu, Fedora and Alpine.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := fillFlags(cmd.Flags(), "", os.LookupEnv); err != nil {
				return err
			}
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", output)
			}
			if !slices.Contains(checkRoles, role) {
				return fmt.Errorf("--role %q: allowed are %s", role, strings.Join(checkRoles, ", "))
			}
			if portsFrom != 0 {
				cfg.Ports = cluster.PortsFrom(portsFrom)
			}
			facts := hostcheck.Probe("/")
			facts.Failures = unmet(&cfg, role)
			want := hostcheck.Want{Command: role, NodeName: cfg.NodeName, ForeignRuntime: role == "agent" || cfg.RuntimeEndpoint != ""}
			return showFindings(cmd.OutOrStdout(), hostcheck.Judge(facts, want), output)
		},
	}
	f := cmd.Flags()
	dataDirFlag(cmd, &cfg.DataDir)
	f.StringVar(&role, "role", "up", "what this host shall be: "+strings.Join(checkRoles, ", "))
	f.StringVarP(&output, "output", "o", "text", "text or json")
	f.StringVar(&cfg.NodeName, "node-name", "", "name of the node (default: the host name)")
	f.StringVar(&cfg.NodeIP, "node-ip", "", "this host's address (default: that of the default route)")
	f.StringVar(&cfg.BundleDir, "bundle-dir", "", "directory of the runtime bundle (default: that of this program)")
	f.StringVar(&cfg.RuntimeEndpoint, "container-runtime-endpoint", "",
		"CRI socket of a runtime that is already there, instead of the bundled one")
	f.IntVar(&portsFrom, "ports-from", 0, "use consecutive ports from this one on, instead of the usual ones")
	return cmd
}

// unmet are the requirements that a start of a role would fail by: its own
// answer. A running cluster holds its ports rightly.
func unmet(cfg *cluster.Config, role string) []hostcheck.Failure {
	if role == "agent" {
		return nil // its runtime and its ports are the configuration's
	}
	cfg.Role = map[string]cluster.Role{"up": cluster.RoleWhole, "server": cluster.RoleServer, "join": cluster.RoleNode}[role]
	if kept, err := cluster.Stored(cfg.DataDir); role == "join" && err == nil && kept.Version == 0 {
		// Nobody is asked: what a first start must be given is not what the host lacks.
		cfg.ServerURL, cfg.Join.Token, cfg.Join.CAHash = "https://192.0.2.1:6443", "abcdef.0123456789abcdef",
			"sha256:"+strings.Repeat("0", 64)
	}
	if err := cfg.Complete(); err != nil {
		return []hostcheck.Failure{{Name: "settings", Message: err.Error()}}
	}
	failures := cfg.Unmet()
	if pid := cluster.Running(cfg.DataDir); pid != 0 {
		failures = slices.DeleteFunc(failures, func(f hostcheck.Failure) bool { return strings.HasPrefix(f.Name, "port ") })
	}
	return failures
}

// showFindings prints findings and fails if a start would.
func showFindings(out io.Writer, findings []hostcheck.Finding, output string) error {
	failed := slices.ContainsFunc(findings, func(f hostcheck.Finding) bool { return f.Level == hostcheck.Fail })
	if output == "json" {
		if err := json.NewEncoder(out).Encode(map[string]any{"ok": !failed, "findings": findings}); err != nil {
			return err
		}
	} else {
		hostcheck.Print(out, findings)
	}
	if failed {
		return errSilent
	}
	return nil
}
