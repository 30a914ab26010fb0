package cli

import (
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/internal/cluster"
)

func downCommand() *cobra.Command {
	var (
		dataDir string
		purge   bool
	)
	cmd := &cobra.Command{
		Use:   "down",
		Short: "stop the cluster, its containers and its runtime; keep the data",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cluster.Down(cmd.Context(), dataDir, purge, cluster.Printer(os.Stdout, term.IsTerminal(int(os.Stdout.Fd()))))
		},
	}
	clusterFlags(cmd, &dataDir)
	cmd.Flags().BoolVar(&purge, "purge", false, "also remove everything the cluster left: data, mounts, cgroups, kernel tables, network")
	return cmd
}
