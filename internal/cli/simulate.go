package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"

	"github.com/berth-dev/berth/internal/sim"
)

// simulateGC trades memory for time: a run of seconds may leave garbage.
const simulateGC = 150

func simulateCommand() *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate SCENARIO.yaml",
		Short: "show what would happen to a cluster, in virtual time",
		Long: "Plays a scenario (nodes, workloads, and faults) with the controllers' own decision code in virtual time.\n" +
			"An hour of 10,000 nodes and 300,000 pods takes seconds. See docs/simulate.md and examples/scenarios.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), cmd, args[0]) },
	}
	f := cmd.Flags()
	f.Uint64Var(&o.seed, "seed", 0, "seed of everything random; 0 takes the scenario's")
	f.StringArrayVar(&o.set, "set", nil, "change flags of the controllers: name=value,name=value")
	f.StringArrayVar(&o.compare, "compare", nil, "play again with these flags changed and show both side by side; may be repeated")
	f.BoolVar(&o.json, "json", false, "print everything as JSON")
	f.BoolVar(&o.summary, "summary", false, "print the numbers only, no timeline")
	f.StringVar(&o.svg, "svg", "", "write a plot to this file")
	f.StringVar(&o.kubeconfig, "from-kubeconfig", "",
		"take nodes, workloads and pods of the live cluster that this kubeconfig names; they are only read")
	return cmd
}

type simulateOptions struct {
	seed          uint64
	set, compare  []string
	json, summary bool
	svg           string
	kubeconfig    string
}

func (o *simulateOptions) run(ctx context.Context, cmd *cobra.Command, file string) error {
	debug.SetGCPercent(simulateGC)
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the scenario: %w", err)
	}
	base, err := o.scenario(ctx, text)
	if err != nil {
		return err
	}
	plays := []*sim.Scenario{base}
	for _, changes := range o.compare {
		other, err := base.With(changes)
		if err != nil {
			return fmt.Errorf("--compare: %w", err)
		}
		plays = append(plays, other)
	}
	var runs []*sim.Result
	for _, sc := range plays {
		began := time.Now()
		r, err := sim.Run(ctx, sc)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "simulated %s in %s\n", time.Duration(sc.Duration), time.Since(began).Round(10*time.Millisecond))
		runs = append(runs, r)
	}
	if o.svg != "" {
		if err := os.WriteFile(o.svg, sim.SVG(runs), 0o644); err != nil { //nolint:gosec // a picture for everybody
			return fmt.Errorf("writing the plot: %w", err)
		}
	}
	switch {
	case o.json:
		return json.NewEncoder(cmd.OutOrStdout()).Encode(runs)
	case o.summary:
		_, err := fmt.Fprint(cmd.OutOrStdout(), sim.SummaryText(runs))
		return err
	}
	return sim.Text(cmd.OutOrStdout(), runs)
}

// scenario reads the file and what the command line changes about it.
func (o *simulateOptions) scenario(ctx context.Context, text []byte) (*sim.Scenario, error) {
	parse := sim.Parse
	if o.kubeconfig != "" {
		parse = sim.ParseEvents
	}
	sc, err := parse(text)
	if err != nil {
		return nil, err
	}
	if o.seed != 0 {
		sc.Seed = o.seed
	}
	for _, changes := range o.set {
		if sc, err = sc.With(changes); err != nil {
			return nil, fmt.Errorf("--set: %w", err)
		}
	}
	if o.kubeconfig == "" {
		return sc, nil
	}
	nodes, pods, err := liveCluster(ctx, o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--from-kubeconfig: %w", err)
	}
	return sc.Import(nodes, pods)
}

// liveCluster lists what a simulation starts from.
func liveCluster(ctx context.Context, kubeconfig string) (nodes []*v1.Node, pods []*v1.Pod, err error) {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, nil, fmt.Errorf("making a client: %w", err)
	}
	list := func(what string, page pager.ListPageFunc, each func(runtime.Object) error) error {
		if err := pager.New(page).EachListItem(ctx, metav1.ListOptions{}, each); err != nil {
			return fmt.Errorf("listing %s: %w", what, err)
		}
		return nil
	}
	err = list("nodes", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Nodes().List(ctx, opts)
	},
		func(o runtime.Object) error { nodes = append(nodes, o.(*v1.Node)); return nil })
	if err != nil {
		return nil, nil, err
	}
	err = list("pods", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Pods("").List(ctx, opts)
	},
		func(o runtime.Object) error { pods = append(pods, o.(*v1.Pod)); return nil })
	return nodes, pods, err
}
