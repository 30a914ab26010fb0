package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/cluster"
)

func statusCommand() *cobra.Command {
	var dataDir, output string
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show parts, health, ages, ports and the limits of this host",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", output)
			}
			return watched(cmd.Context(), cmd.OutOrStdout(), watch && output == "text", statusInterval, func(out io.Writer) error {
				return showStatus(cmd.Context(), out, dataDir, output)
			})
		},
	}
	clusterFlags(cmd, &dataDir)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every 2 seconds, until interrupted")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// statusInterval is how often a live status is shown: health has no events.
const statusInterval = 2 * time.Second

// showStatus writes the status once; it fails if a part is not well.
func showStatus(ctx context.Context, out io.Writer, dataDir, output string) error {
	pid := cluster.Running(dataDir)
	if pid == 0 {
		fmt.Fprintf(out, "down: no cluster runs on %s; start one with `berth up`\n", dataDir)
		return errSilent
	}
	s, err := cluster.Ask(ctx, dataDir)
	if err != nil {
		return fmt.Errorf("process %d holds %s but does not answer (it may still be starting): %w", pid, dataDir, err)
	}
	if output == "json" {
		return json.NewEncoder(out).Encode(s)
	}
	s.Print(out, time.Now())
	for _, c := range s.Checks {
		if !c.OK {
			return errSilent
		}
	}
	return nil
}
