package cli

import (
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/internal/memory"
	"github.com/berth-dev/berth/internal/nodes/launch"
)

// controllersCommand runs the node controllers against any API server.
func controllersCommand() *cobra.Command {
	o := launch.NewOptions()
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "run the node controllers alone, against any conformant API server",
		Long: "Takes the place of the node controllers of kube-controller-manager and cloud-controller-manager, with their flags. " +
			"Start those with --controllers=*,-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller," +
			"-pod-garbage-collector-controller,-ttl-controller.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			handler := stderrLog(o.LogFormat, verbosity(o.Verbosity))
			klog.SetLoggerWithOptions(logr.FromSlogHandler(handler), klog.ContextualLogger(true))
			log := slog.New(handler)
			go memory.ReleasePeriodically(cmd.Context(), log)
			return launch.Run(cmd.Context(), o, log)
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}
