package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/proxy"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/why"
	"github.com/berth-dev/berth/internal/why/ask"
)

// whyOptions are the flags of `berth why`.
type whyOptions struct{ dataDir, namespace, output, socket, kubeconfig string }

func whyCommand() *cobra.Command {
	var o whyOptions
	cmd := &cobra.Command{
		Use:   "why KIND [NAMESPACE/]NAME",
		Short: "tell why an object is as it is: the cause, what to do, and what was decided",
		Long: "Why names the cause in its first line, then facts, remedies and the decisions about the object. It reads the API with " +
			"your rights and the journal of the cluster on this host; it works for what is gone, and while the API server is down.\n\n" +
			"Kinds: " + why.Words() + ".",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, namespaced, ok := why.KindOf(args[0])
			if !ok {
				return fmt.Errorf("why %q: allowed are %s", args[0], why.Words())
			}
			if o.output != "text" && o.output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", o.output)
			}
			ref := journal.Ref{Kind: kind, Name: args[1]}
			if ns, name, ok := strings.Cut(args[1], "/"); ok {
				o.namespace, ref.Name = ns, name
			}
			if namespaced {
				ref.Namespace = o.namespace
			}
			return o.answer(cmd.Context(), cmd.OutOrStdout(), ref)
		},
	}
	clusterFlags(cmd, &o.dataDir)
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", "default", "namespace of the object")
	cmd.Flags().StringVar(&o.socket, "socket", "", "for services: socket of a berth proxy outside a cluster of ours")
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "",
		"the API to ask, and as whom (default: $KUBECONFIG, or admin.kubeconfig of --data-dir)")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "text or json")
	return cmd
}

// serviceAnswer is an answer with what the proxy of this host programs.
type serviceAnswer struct {
	why.Answer
	Proxy []proxy.Line `json:"proxy,omitempty"`
}

func (o *whyOptions) answer(ctx context.Context, out io.Writer, ref journal.Ref) error {
	cfg := ask.Config{Now: time.Now(), Host: o.host}
	cfg.Client, cfg.APIError = o.client()
	if _, err := os.Stat(o.dataDir); err == nil {
		cfg.Records = func(ctx context.Context, ref journal.Ref) ([]journal.Record, error) {
			return cluster.Why(ctx, o.dataDir, ref)
		}
	}
	a, err := ask.Why(ctx, cfg, ref)
	if err != nil {
		return err
	}
	full := serviceAnswer{Answer: a}
	known := cfg.APIError == nil || len(a.Decisions) > 0
	if ref.Kind == "Service" && a.State != why.Missing {
		var answered bool
		full.Proxy, answered = o.programmed(ctx, ref)
		known = known || answered
	}
	if o.output == "json" {
		return json.NewEncoder(out).Encode(full)
	}
	if err := a.Write(out); err != nil {
		return err
	}
	if len(full.Proxy) > 0 {
		fmt.Fprintln(out, "\nthe proxy of this host")
		if err := printLines(out, o.output, full.Proxy); err != nil {
			return err
		}
	}
	if !known {
		return errSilent // neither API nor journal nor proxy: the text says so
	}
	return nil
}

// client is the API as the caller may use it.
func (o *whyOptions) client() (*rest.Config, error) {
	file := o.kubeconfig
	if file == "" {
		file = os.Getenv("KUBECONFIG")
	}
	if file == "" {
		file = filepath.Join(o.dataDir, "admin.kubeconfig")
	}
	rc, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("%w (--kubeconfig names another)", err)
	}
	rc.Timeout, rc.QPS = 10*time.Second, -1
	return rc, nil
}

// host is what this host can tell while the API does not answer: the parts
// that are not well, and certificates that expired.
func (o *whyOptions) host(ctx context.Context) []journal.Fact {
	if cluster.Running(o.dataDir) == 0 {
		return []journal.Fact{{Name: "berth", Value: "no berth process runs on " + o.dataDir}}
	}
	var facts []journal.Fact
	s, err := cluster.Ask(ctx, o.dataDir)
	if err != nil {
		return []journal.Fact{{Name: "berth", Value: err.Error()}}
	}
	now := time.Now()
	for _, c := range s.Certificates {
		if c.End.Before(now) {
			facts = append(facts, journal.Fact{Name: "certificate", Value: fmt.Sprintf("%s expired at %s", c.Name,
				c.End.UTC().Format(time.RFC3339))})
		}
	}
	for _, c := range s.Checks {
		if !c.OK {
			facts = append(facts, journal.Fact{Name: c.Name, Value: c.Detail})
		}
	}
	return facts
}

// programmed is what the proxy of this host programs for a Service. Where no
// proxy answers it is what one would program, from the API; known is false
// where that does not answer either.
func (o *whyOptions) programmed(ctx context.Context, ref journal.Ref) (lines []proxy.Line, known bool) {
	q := url.Values{"namespace": {ref.Namespace}, "name": {ref.Name}}
	lines, failed := askProxy(ctx, proxySocket(o.dataDir, o.socket), "/proxy/service?"+q.Encode())
	if failed == nil {
		return lines, true
	}
	lines = []proxy.Line{{Text: fmt.Sprintf("no service proxy answers: %v", failed)},
		{Text: "rules it wrote go on working; `berth up` or `berth proxy` starts it, --socket names another's socket"}}
	would, err := o.fromAPI(ctx, ref)
	if err != nil {
		return append(lines, proxy.Line{Text: fmt.Sprintf("the API does not answer either: %v (--kubeconfig names another)", err)}), false
	}
	return append(append(lines, proxy.Line{Text: "as the API has it now, a proxy of this node would program:"}), would...), true
}

// fromAPI describes a Service from the objects of the API alone.
func (o *whyOptions) fromAPI(ctx context.Context, ref journal.Ref) ([]proxy.Line, error) {
	rc, err := o.client()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, err
	}
	node, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	if s, err := cluster.Ask(ctx, o.dataDir); err == nil {
		node = s.Settings.NodeName
	}
	return proxy.Describe(ctx, client, strings.ToLower(node), model.Name{Namespace: ref.Namespace, Name: ref.Name})
}
