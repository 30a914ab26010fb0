// Package cli turns command lines into role configurations, one file per
// sub-command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "unknown"

// errSilent ends a command whose failure was already shown.
var errSilent = errors.New("already reported")

// Main runs the command line and returns the process exit code. SIGINT and
// SIGTERM end the context that every command gets.
func Main(args []string) int {
	// kubectl owns its whole command line, including --help.
	if len(args) > 1 && args[1] == "kubectl" {
		return kubectl(args[2:])
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := rootCommand()
	root.SetArgs(args[1:])
	if err := root.ExecuteContext(ctx); err != nil {
		if !errors.Is(err, errSilent) {
			fmt.Fprintln(os.Stderr, "berth:", err)
		}
		return 1
	}
	return 0
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "berth",
		Short:         "every node-side part of Kubernetes, and a whole cluster on one host",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cobra.EnableCommandSorting = false // within a group, what is needed first comes first
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	return root
}

// group is a heading of the help and what stands below it.
type group struct {
	title    string
	commands []*cobra.Command
}

func groups() []group {
	// Listed for help; Main runs it before cobra sees its flags.
	kubectl := &cobra.Command{Use: "kubectl", Short: "the real kubectl, wired to this cluster", DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if kubectl(args) != 0 {
				return errSilent
			}
			return nil
		}}
	return []group{
		{"A cluster on this host", []*cobra.Command{upCommand(), downCommand(), kubectl, imageCommand(), lsCommand(), deleteCommand()}},
		{"A service of this host", []*cobra.Command{checkCommand(), installCommand(), uninstallCommand()}},
		{"See and ask", []*cobra.Command{statusCommand(), whyCommand(), eventsCommand(), topCommand(), uiCommand()}},
		{"More hosts", []*cobra.Command{serverCommand(), tokenCommand(), joinCommand()}},
		{"Keep safe", []*cobra.Command{snapshotCommand(), secretsCommand()}},
		{"One part in a foreign cluster", []*cobra.Command{agentCommand(), proxyCommand(), controllersCommand()}},
		{"Try without hosts", []*cobra.Command{simulateCommand(), fleetCommand()}},
	}
}
