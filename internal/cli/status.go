package cli

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/cluster"
)

func statusCommand() *cobra.Command {
	var dataDir, output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show parts, health, ages, ports and the limits of this host",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", output)
			}
			pid := cluster.Running(dataDir)
			if pid == 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "down: no cluster runs on %s; start one with `berth up`\n", dataDir)
				return errSilent
			}
			s, err := cluster.Ask(cmd.Context(), dataDir)
			if err != nil {
				return fmt.Errorf("process %d holds %s but does not answer (it may still be starting): %w", pid, dataDir, err)
			}
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(s)
			}
			s.Print(cmd.OutOrStdout(), time.Now())
			for _, c := range s.Checks {
				if !c.OK {
					return errSilent
				}
			}
			return nil
		},
	}
	clusterFlags(cmd, &dataDir)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}
