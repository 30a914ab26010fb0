package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/sim"
)

// simulateGC trades memory for time: a run of seconds may leave garbage.
const simulateGC = 400

func simulateCommand() *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate SCENARIO.yaml",
		Short: "tell what would happen to a cluster, in virtual time",
		Long: "Plays a scenario (nodes, workloads, and what befalls them) with the controllers' own decision code in virtual time.\n" +
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
	f.StringVar(&o.kubeconfig, "from-kubeconfig", "", "take nodes, workloads and pods of the live cluster that this kubeconfig names; they are only read")
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
func (o *simulateOptions) scenario(ctx context.Context, text []byte) (sc *sim.Scenario, err error) {
	if o.kubeconfig != "" {
		return nil, errors.New("TODO")
	}
	sc, err = sim.Parse(text)
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
	return sc, nil
}
