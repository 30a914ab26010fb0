package cli

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/launch"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/memory"
)

// agentCommand runs the node agent against any API server.
func agentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "run the node agent against any conformant API server",
		Long: "Reads a KubeletConfiguration (v1beta1) and the flags people use with it. Fields that are not supported are refused " +
			"by name.",
		Args: cobra.NoArgs,
	}
	flags := config.AddFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		effective, err := config.Load(flags)
		if err != nil {
			return err
		}
		if flags.Agent.CheckConfig {
			for _, note := range effective.Notes {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", note)
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), effective.Explain())
			return err
		}
		level := &slog.LevelVar{}
		level.Set(verbosity(int(effective.Kubelet.Logging.Verbosity)))
		log := slog.New(stderrLog(effective.Kubelet.Logging.Format, level))
		go memory.ReleasePeriodically(cmd.Context(), log)
		return launch.Run(cmd.Context(), launch.Config{
			Effective: effective, Log: log, LogLevel: level, Version: kube.Version, LogLinkDir: launch.HostLogLinks,
		})
	}
	return cmd
}
