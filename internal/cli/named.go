package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/cluster/named"
)

// clusterFlags lets a command say which cluster of this host it is about: by its
// data directory or by its name.
func clusterFlags(cmd *cobra.Command, dataDir *string) {
	dataDirFlag(cmd, dataDir)
	cmd.Flags().Var((*byName)(dataDir), "name", "name of the cluster, instead of its directory (environment: BERTH_NAME)")
	cmd.MarkFlagsMutuallyExclusive("data-dir", "name")
}

// byName is a data directory that is set by the name of its cluster.
type byName string

func (b *byName) Set(name string) error {
	p, err := named.Default().Find(name)
	*b = byName(p.DataDir)
	return err
}

func (b *byName) String() string { return "" }
func (b *byName) Type() string   { return "string" }

// defaultDataDir is the directory of the cluster that the environment names.
func defaultDataDir() string {
	if dir := os.Getenv("BERTH_DATA_DIR"); dir != "" {
		return dir
	}
	if name := nameOfEnvironment(); name != "" {
		// A name that is not there (any more) leads to a directory that is not
		// there: the command says what it misses.
		if p, err := named.Default().Find(name); err == nil {
			return p.DataDir
		}
		return "/nonexistent/" + name
	}
	return host.DefaultDataDir
}

// nameOfEnvironment is the name in BERTH_NAME, unless BERTH_DATA_DIR names a
// directory, which wins.
func nameOfEnvironment() string {
	if os.Getenv("BERTH_DATA_DIR") != "" {
		return ""
	}
	return os.Getenv("BERTH_NAME")
}

// nameIt gives a cluster that is started by name its directory, and at its first
// start the ports and ranges that no other one has.
func (s *starter) nameIt(cfg *cluster.Config) error {
	if s.name == "" && !s.ephemeral {
		return nil
	}
	if s.name == "" {
		s.name = "e-" + strings.ToLower(rand.Text()[:8])
		s.generated = true
	}
	p, err := named.Default().Make(s.name, s.ephemeral, named.PortsFree)
	if err != nil {
		return err
	}
	s.place = p
	before, err := cluster.Stored(p.DataDir)
	if err != nil {
		return err
	}
	if before.Version != 0 && s.ephemeral && !before.Ephemeral {
		return fmt.Errorf("cluster %s was made without --ephemeral: start it without, or choose another --name", p.Name)
	}
	cfg.DataDir, cfg.Name, cfg.Ephemeral = p.DataDir, p.Name, s.ephemeral
	if before.Version == 0 { // later starts read what the first one wrote
		cfg.ClusterCIDR = cmp.Or(cfg.ClusterCIDR, p.ClusterCIDR())
		cfg.ServiceCIDR = cmp.Or(cfg.ServiceCIDR, p.ServiceCIDR())
		if s.portsFrom == 0 {
			s.portsFrom = p.FirstPort()
		}
	}
	return nil
}

// abandon frees what a failed first start took. Logs stay, for the error names
// them, but not for a test, which was told everything.
func (s *starter) abandon() {
	if !s.place.New {
		return
	}
	if s.lifeline {
		os.RemoveAll(filepath.Join(s.place.DataDir, "logs")) //nolint:errcheck // then it stays listed
	}
	if os.Remove(s.place.DataDir) == nil { // only an empty one
		named.Default().Forget(s.place) //nolint:errcheck // a slot without a directory is free
	}
}

// remove ends a named cluster and leaves nothing of it.
func remove(ctx context.Context, p named.Place, emit cluster.Progress) error {
	if err := cluster.Down(ctx, p.DataDir, true, emit); err != nil {
		return err
	}
	return named.Default().Forget(p)
}

func deleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME...",
		Short: "stop named clusters and remove everything of them",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			var errs []error
			for _, name := range names {
				p, err := named.Default().Find(name)
				if err == nil {
					err = remove(cmd.Context(), p, cluster.Printer(cmd.OutOrStdout(), term.IsTerminal(int(os.Stdout.Fd()))))
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
}

// clusterLine is one line of `berth ls`.
type clusterLine struct {
	Name      string `json:"name"`
	State     string `json:"state"` // ready, starting, stopped
	Role      string `json:"role"`
	API       string `json:"api,omitempty"`
	Ephemeral bool   `json:"ephemeral,omitempty"`
	AgeS      int64  `json:"ageSeconds,omitempty"`
	DataDir   string `json:"dataDir"`
}

func lsCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list the clusters of this host that have a name, and the default one",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("-o %q: allowed is json", output)
			}
			places, err := named.Default().List()
			if err != nil {
				return err
			}
			all := []clusterLine{}
			if s, err := cluster.Stored(host.DefaultDataDir); err == nil && s.Version != 0 {
				all = append(all, look(cmd.Context(), "-", host.DefaultDataDir, time.Now()))
			}
			for _, p := range places {
				all = append(all, look(cmd.Context(), p.Name, p.DataDir, time.Now()))
			}
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(all)
			}
			return printClusters(cmd.OutOrStdout(), all)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or a table")
	return cmd
}

// look says how the cluster in a directory stands.
func look(ctx context.Context, name, dataDir string, now time.Time) clusterLine {
	l := clusterLine{Name: name, State: "stopped", DataDir: dataDir}
	s, err := cluster.Stored(dataDir)
	if err != nil || s.Version == 0 {
		l.State = "empty"
		return l
	}
	l.Role, l.Ephemeral = s.Role.Command(), s.Ephemeral
	if cluster.Running(dataDir) == 0 {
		return l
	}
	l.State = "starting"
	if st, err := cluster.Ask(ctx, dataDir); err == nil {
		l.API, l.AgeS = st.APIURL(), int64(now.Sub(st.Since).Seconds())
		if st.Ready {
			l.State = "ready"
		}
	}
	return l
}

func printClusters(w io.Writer, all []clusterLine) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no clusters: `berth up` starts one, `berth up --name NAME` one beside it")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(tw, "NAME\tSTATE\tROLE\tAPI\tAGE\tEPHEMERAL\tDATA")
	for _, l := range all {
		age := "-"
		if l.AgeS > 0 {
			age = (time.Duration(l.AgeS) * time.Second).String()
		}
		yes := "no"
		if l.Ephemeral {
			yes = "yes"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Name, l.State, cmp.Or(l.Role, "-"), cmp.Or(l.API, "-"), age, yes, l.DataDir)
	}
	return tw.Flush()
}

// throwAway removes a throw-away cluster that ran in this process.
func throwAway(cfg *cluster.Config) error {
	p, err := named.Default().Find(cfg.Name)
	if err != nil {
		return nil // it never came so far, or somebody deleted it
	}
	// The context of the start has ended; this does not end with it.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return remove(ctx, p, cluster.Printer(os.Stdout, false))
}
