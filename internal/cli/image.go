package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/images"
)

// imageStore is what both the runtime of this node and the agents of others do.
type imageStore interface {
	Load(ctx context.Context, archive io.Reader, name string) ([]images.Image, error)
	List(ctx context.Context) ([]images.Image, error)
	Remove(ctx context.Context, names []string, force bool) ([]string, error)
	Prune(ctx context.Context) (removed []string, freed int64, err error)
}

// imageNodes says which nodes an image command is for.
type imageNodes struct {
	dataDir, kubeconfig, agentCA string
	nodes                        []string
	all                          bool
}

func (n *imageNodes) flags(cmd *cobra.Command) {
	dataDirFlag(cmd, &n.dataDir)
	f := cmd.Flags()
	f.StringSliceVar(&n.nodes, "node", nil, "do it on these nodes, through their agents (default: on this node)")
	f.BoolVar(&n.all, "all-nodes", false, "do it on every node, through their agents")
	f.StringVar(&n.kubeconfig, "kubeconfig", "",
		"with --node and --all-nodes: who you are (default: the administrator of the data directory)")
	f.StringVar(&n.agentCA, "agent-ca", "", "with --node and --all-nodes: CA of the agents (default: that of the data directory)")
	cmd.MarkFlagsMutuallyExclusive("node", "all-nodes")
}

func (n *imageNodes) remote() bool { return n.all || len(n.nodes) > 0 }

// each does something on every node that is meant, in order of their names. A
// node that fails does not stop the others. name is empty for this node.
func (n *imageNodes) each(ctx context.Context, do func(name string, s imageStore) error) error {
	if !n.remote() {
		s, end, err := cluster.OpenImages(ctx, n.dataDir)
		if err != nil {
			return err
		}
		defer end()
		return do("", s)
	}
	file, trust := n.kubeconfig, n.agentCA
	if file == "" {
		file = n.dataDir + "/admin.kubeconfig"
	}
	if trust == "" {
		trust = cluster.AgentTrustFile(n.dataDir)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return fmt.Errorf("no administrator's kubeconfig in %s: run this on a server of the cluster, or give --kubeconfig: %w", n.dataDir,
			err)
	}
	stores, err := cluster.RemoteImages(ctx, cfg, trust, n.nodes)
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range slices.Sorted(maps.Keys(stores)) {
		if err := do(name, stores[name]); err != nil {
			failed = append(failed, fmt.Errorf("node %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}

// imageCommand loads, lists and removes images of nodes.
func imageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "load images from archives, list and remove them", Args: cobra.NoArgs}
	cmd.AddCommand(imageLoad(), imageList(), imageRemove(), imagePrune())
	return cmd
}

func imageLoad() *cobra.Command {
	var n imageNodes
	var name string
	cmd := &cobra.Command{
		Use: "load FILE...", Short: "load images from archives into the container runtime", Args: cobra.MinimumNArgs(1),
		Long: "Loads every image of the files; " + images.Accepted + ".\nA single - reads an archive from standard input.",
		RunE: func(cmd *cobra.Command, files []string) error {
			if name != "" && len(files) > 1 {
				return errors.New("--name: a name can be given to one file only")
			}
			files, done, err := keepStdin(cmd.InOrStdin(), files, n.remote())
			if err != nil {
				return err
			}
			defer done()
			w := newTable(cmd.OutOrStdout(), n.remote(), "NAME", "DIGEST", "SIZE", "PLATFORM", "")
			err = n.each(cmd.Context(), func(node string, s imageStore) error {
				var failed []error
				for _, file := range files {
					loaded, err := loadFile(cmd.Context(), s, file, cmd.InOrStdin(), name)
					if err != nil {
						failed = append(failed, err)
					}
					for _, i := range loaded {
						state := "loaded"
						if i.Present {
							state = "was there"
						}
						w.row(node, i.Name, i.Digest, bytesText(i.Size), i.Platform, state)
					}
				}
				return errors.Join(failed...)
			})
			return errors.Join(w.Flush(), err)
		},
	}
	n.flags(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name for the only image of the file, instead of the names in it")
	return cmd
}

func loadFile(ctx context.Context, s imageStore, file string, stdin io.Reader, name string) ([]images.Image, error) {
	shown := file
	if file == "-" {
		shown = "standard input"
	}
	r, err := images.OpenFile(file, stdin)
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", shown, err)
	}
	defer r.Close()
	loaded, err := s.Load(ctx, r, name)
	if err != nil {
		return loaded, fmt.Errorf("loading %s: %w", shown, err)
	}
	return loaded, nil
}

// keepStdin copies standard input into a file where it is needed more than once.
func keepStdin(in io.Reader, files []string, several bool) (list []string, done func(), err error) {
	done = func() {}
	count := 0
	for _, f := range files {
		if f == "-" {
			count++
		}
	}
	switch {
	case count > 1:
		return nil, done, errors.New("- is given twice: standard input can be read once")
	case count == 0 || !several:
		return files, done, nil
	}
	f, err := os.CreateTemp("", "berth-image")
	if err != nil {
		return nil, done, fmt.Errorf("keeping standard input for all nodes: %w", err)
	}
	done = func() { os.Remove(f.Name()) }
	_, err = io.Copy(f, in)
	if err = errors.Join(err, f.Close()); err != nil {
		done()
		return nil, func() {}, fmt.Errorf("keeping standard input for all nodes in %s: %w", f.Name(), err)
	}
	list = slices.Clone(files)
	list[slices.Index(list, "-")] = f.Name()
	return list, done, nil
}

func imageList() *cobra.Command {
	var n imageNodes
	var output string
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "list images, and how many containers use them", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", output)
			}
			type row struct {
				Node string `json:"node,omitempty"`
				images.Image
			}
			rows := []row{}
			w := newTable(cmd.OutOrStdout(), n.remote(), "NAME", "DIGEST", "SIZE", "PLATFORM", "CONTAINERS", "PINNED")
			err := n.each(cmd.Context(), func(node string, s imageStore) error {
				list, err := s.List(cmd.Context())
				for _, i := range list {
					pinned := ""
					if i.Pinned {
						pinned = "yes"
					}
					rows = append(rows, row{node, i})
					w.row(node, i.Name, i.Digest, bytesText(i.Size), i.Platform, fmt.Sprint(i.Containers), pinned)
				}
				return err
			})
			if output == "json" {
				return errors.Join(json.NewEncoder(cmd.OutOrStdout()).Encode(rows), err)
			}
			return errors.Join(w.Flush(), err)
		},
	}
	n.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func imageRemove() *cobra.Command {
	var n imageNodes
	var force bool
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "remove images that no container uses, by name or id", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			return n.each(cmd.Context(), func(node string, s imageStore) error {
				gone, err := s.Remove(cmd.Context(), names, force)
				printRemoved(cmd.OutOrStdout(), node, gone)
				return err
			})
		},
	}
	n.flags(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "remove images that are used or pinned too; containers that run go on")
	return cmd
}

func imagePrune() *cobra.Command {
	var n imageNodes
	cmd := &cobra.Command{
		Use: "prune", Short: "remove every image that no container uses and that is not pinned", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return n.each(cmd.Context(), func(node string, s imageStore) error {
				gone, freed, err := s.Prune(cmd.Context())
				printRemoved(cmd.OutOrStdout(), node, gone)
				if node != "" {
					node += ": "
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%sfreed %s\n", node, bytesText(freed))
				return err
			})
		},
	}
	n.flags(cmd)
	return cmd
}

func printRemoved(w io.Writer, node string, gone []string) {
	if node != "" {
		node += ": "
	}
	for _, name := range gone {
		fmt.Fprintf(w, "%sremoved %s\n", node, name)
	}
}

// table is a table whose first column is the node, where there are several.
// Without a row it has no head.
type table struct {
	*tabwriter.Writer
	nodes bool
	head  []string
}

func newTable(w io.Writer, nodes bool, head ...string) *table {
	return &table{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0), nodes, head}
}

func (t *table) row(node string, cells ...string) {
	if head := t.head; head != nil {
		t.head = nil
		t.row("NODE", head...)
	}
	if t.nodes {
		cells = append([]string{node}, cells...)
	}
	fmt.Fprintln(t, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// bytesText is a size for people.
func bytesText(n int64) string {
	if n < 1<<20 {
		return resource.NewQuantity(n>>10<<10, resource.BinarySI).String()
	}
	return resource.NewQuantity(n>>20<<20, resource.BinarySI).String()
}
