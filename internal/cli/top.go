package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// sampling is how often the metrics API has new numbers; a live view asks no
// more often.
const sampling = 15 * time.Second

// usage is a row of `berth top`; docs/why.md documents its JSON.
type usage struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// CPU is in thousandths of a core, Memory in bytes, each beside what a node
	// can give or a pod asked for.
	CPU       int64 `json:"cpuMilli"`
	OfCPU     int64 `json:"ofCPUMilli,omitempty"`
	Memory    int64 `json:"memoryBytes"`
	OfMemory  int64 `json:"ofMemoryBytes,omitempty"`
	Restarts  int32 `json:"restarts,omitempty"`
	namespace bool
}

type topOptions struct {
	whyOptions
	sort  string
	watch bool
}

func topCommand() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:       "top [nodes|pods]",
		Short:     "show what nodes and pods use of CPU and memory",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"nodes", "pods"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.output != "text" && o.output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", o.output)
			}
			if !slices.Contains([]string{"cpu", "memory", "name"}, o.sort) {
				return fmt.Errorf("--sort %q: allowed are cpu, memory and name", o.sort)
			}
			return watched(cmd.Context(), cmd.OutOrStdout(), o.watch && o.output == "text", sampling, func(out io.Writer) error {
				return o.show(cmd.Context(), out, len(args) == 0 || args[0] == "nodes", len(args) == 0 || args[0] == "pods")
			})
		},
	}
	clusterFlags(cmd, &o.dataDir)
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", "", "only pods of this namespace (default: of all)")
	cmd.Flags().StringVar(&o.sort, "sort", "cpu", "cpu, memory or name")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "show it again with each new sample, until interrupted")
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "",
		"the API to ask, and as whom (default: $KUBECONFIG, or admin.kubeconfig of --data-dir)")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "text or json")
	return cmd
}

// watched shows something once, or again at each interval until ctx ends or
// the user interrupts.
func watched(ctx context.Context, out io.Writer, again bool, every time.Duration, show func(io.Writer) error) error {
	if !again {
		return show(out)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		fmt.Fprint(out, "\x1b[H\x1b[2J") // home, and clear the screen
		if err := show(out); err != nil && !errors.Is(err, errSilent) {
			fmt.Fprintln(out, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (o *topOptions) show(ctx context.Context, out io.Writer, nodes, pods bool) error {
	rc, err := o.client()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return fmt.Errorf("using the kubeconfig: %w", err)
	}
	all := map[string][]usage{}
	if nodes {
		if all["nodes"], err = nodeUsage(ctx, client); err != nil {
			return err
		}
	}
	if pods {
		if all["pods"], err = podUsage(ctx, client, o.namespace); err != nil {
			return err
		}
	}
	for _, rows := range all {
		sortUsage(rows, o.sort)
	}
	if o.output == "json" {
		return json.NewEncoder(out).Encode(all)
	}
	if nodes {
		printUsage(out, "NODE", all["nodes"])
	}
	if pods {
		if nodes {
			fmt.Fprintln(out)
		}
		printUsage(out, "POD", all["pods"])
	}
	return nil
}

// sample reads lists of the metrics API.
func sample(ctx context.Context, client kubernetes.Interface, path string, into any) error {
	raw, err := client.Discovery().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1" + path).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("asking the metrics API: %w (berth why apiservice v1beta1.metrics.k8s.io)", err)
	}
	return json.Unmarshal(raw, into)
}

func nodeUsage(ctx context.Context, client kubernetes.Interface) (out []usage, err error) {
	var list metrics.NodeMetricsList
	if err := sample(ctx, client, "/nodes", &list); err != nil {
		return nil, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	for _, m := range list.Items {
		u := usage{Name: m.Name, CPU: m.Usage.Cpu().MilliValue(), Memory: m.Usage.Memory().Value()}
		for _, n := range nodes.Items {
			if n.Name == m.Name {
				u.OfCPU, u.OfMemory = n.Status.Allocatable.Cpu().MilliValue(), n.Status.Allocatable.Memory().Value()
			}
		}
		out = append(out, u)
	}
	return out, nil
}

func podUsage(ctx context.Context, client kubernetes.Interface, namespace string) (out []usage, err error) {
	var list metrics.PodMetricsList
	path := "/pods"
	if namespace != "" {
		path = "/namespaces/" + namespace + path
	}
	if err := sample(ctx, client, path, &list); err != nil {
		return nil, err
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	byName := map[[2]string]*v1.Pod{}
	for i := range pods.Items {
		byName[[2]string{pods.Items[i].Namespace, pods.Items[i].Name}] = &pods.Items[i]
	}
	for _, m := range list.Items {
		u := usage{Namespace: m.Namespace, Name: m.Name, namespace: true}
		for _, c := range m.Containers {
			u.CPU += c.Usage.Cpu().MilliValue()
			u.Memory += c.Usage.Memory().Value()
		}
		if p := byName[[2]string{m.Namespace, m.Name}]; p != nil {
			for _, c := range p.Spec.Containers {
				u.OfCPU += c.Resources.Requests.Cpu().MilliValue()
				u.OfMemory += c.Resources.Requests.Memory().Value()
			}
			for _, s := range p.Status.ContainerStatuses {
				u.Restarts += s.RestartCount
			}
		}
		out = append(out, u)
	}
	return out, nil
}

// sortUsage puts the largest first, or orders by name.
func sortUsage(rows []usage, by string) {
	slices.SortFunc(rows, func(a, b usage) int {
		first := 0
		switch by {
		case "cpu":
			first = cmp.Compare(b.CPU, a.CPU)
		case "memory":
			first = cmp.Compare(b.Memory, a.Memory)
		}
		return cmp.Or(first, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func printUsage(out io.Writer, title string, rows []usage) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	of, last := "OF", ""
	if title == "POD" {
		of, last = "REQUESTED", "\tRESTARTS"
	}
	fmt.Fprintf(w, "%s\tCPU\t%s\tMEMORY\t%s%s\n", title, of, of, last)
	for _, r := range rows {
		name := r.Name
		if r.namespace {
			name = r.Namespace + "/" + r.Name
			last = fmt.Sprintf("\t%d", r.Restarts)
		}
		fmt.Fprintf(w, "%s\t%dm\t%s\t%dMi\t%s%s\n", name, r.CPU, share(r.OfCPU, r.CPU, fmt.Sprintf("%dm", r.OfCPU)), r.Memory>>20,
			share(r.OfMemory, r.Memory, fmt.Sprintf("%dMi", r.OfMemory>>20)), last)
	}
	w.Flush() //nolint:errcheck // the terminal went away
}

// share is what there is, and how much of it is used.
func share(of, used int64, text string) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%s (%d %%)", text, used*100/of)
}
