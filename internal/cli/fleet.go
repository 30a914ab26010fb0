package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/fleet"
	"github.com/berth-dev/berth/internal/kube"
)

// fleetGC keeps a fleet's heap small: a fleet is measured by what it holds.
const fleetGC = 50

func fleetCommand() *cobra.Command {
	var kubeconfig, memory, script string
	var cleanup, events, verbose bool
	cfg := fleet.Config{Version: kube.Version}
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "run thousands of hollow nodes against an API server",
		Long: "Nodes that register, renew their leases, post their status and run pods by the agent's own code, on hosts that are\n" +
			"not there. They can be stopped, cut off and brought back by a script. See docs/fleet.md.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			debug.SetGCPercent(fleetGC)
			if kubeconfig == "" {
				return errors.New("--kubeconfig is missing: name the file that leads to the API server, or set KUBECONFIG")
			}
			var err error
			if cfg.Client, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
				return fmt.Errorf("--kubeconfig %q: %w", kubeconfig, err)
			}
			if cfg.Memory, err = resource.ParseQuantity(memory); err != nil {
				return fmt.Errorf("--memory %q: %w", memory, err)
			}
			if script != "" {
				text, err := os.ReadFile(script)
				if err != nil {
					return fmt.Errorf("--script: %w", err)
				}
				if cfg.Script, err = fleet.ParseScript(text); err != nil {
					return fmt.Errorf("--script %s: %w", script, err)
				}
			}
			level := slog.LevelError
			if verbose {
				level = slog.LevelDebug
			}
			cfg.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			cfg.Out, cfg.Keep = cmd.OutOrStdout(), !cleanup
			if events {
				client, err := kubernetes.NewForConfig(cfg.Client)
				if err != nil {
					return fmt.Errorf("making a client for events: %w", err)
				}
				b := record.NewBroadcaster(record.WithContext(cmd.Context()))
				defer b.Shutdown()
				b.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: client.CoreV1().Events("")})
				cfg.Events = b.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet"})
			}
			return fleet.Run(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the API server to run against")
	f.IntVar(&cfg.Nodes, "nodes", 100, "number of nodes")
	f.StringVar(&cfg.Prefix, "name-prefix", "hollow", "nodes are named PREFIX-0 and so on, and labelled "+fleet.Label+"=PREFIX")
	f.StringToStringVar(&cfg.Labels, "labels", nil, "labels of every node")
	f.IntVar(&cfg.Zones, "zones", 0, "spread the nodes over this many zones: zone-a and so on")
	f.Int32Var(&cfg.LeaseSeconds, "lease-duration", 40, "seconds that a lease lasts; it is renewed four times as often")
	f.DurationVar(&cfg.ReportEvery, "status-frequency", 5*time.Minute, "how often an unchanged status is posted")
	f.IntVar(&cfg.CPUs, "cpus", 32, "CPUs of each node")
	f.StringVar(&memory, "memory", "128Gi", "memory of each node")
	f.Int64Var(&cfg.MaxPods, "max-pods", 110, "pods that a node takes")
	f.IntVar(&cfg.Pods, "pods", 0, "pods to make for each node, in the namespace default; others may be scheduled")
	f.Float64Var(&cfg.RegisterRate, "register-rate", 200, "nodes that begin in a second")
	f.StringVar(&script, "script", "", "faults of the nodes, as YAML: see docs/fleet.md")
	f.DurationVar(&cfg.Duration, "duration", 0, "end after this time; 0 runs until interrupted")
	f.BoolVar(&cleanup, "cleanup", true, "delete the Nodes, their leases and the fleet's pods at the end")
	f.BoolVar(&events, "events", false, "record the agents' events in the API too")
	f.BoolVar(&verbose, "verbose", false, "log what fails")
	return cmd
}
