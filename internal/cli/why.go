package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/proxy"
	"github.com/berth-dev/berth/internal/proxy/model"
)

// kinds are the words users type for what the journal knows.
var kinds = map[string]string{
	"node": "Node", "no": "Node", "pod": "Pod", "po": "Pod", "service": "Service", "svc": "Service", "deployment": "Deployment",
	"deploy":     "Deployment",
	"replicaset": "ReplicaSet", "rs": "ReplicaSet", "daemonset": "DaemonSet", "ds": "DaemonSet", "statefulset": "StatefulSet",
	"sts": "StatefulSet", "job": "Job", "cronjob": "CronJob", "cj": "CronJob",
}

func whyCommand() *cobra.Command {
	var dataDir, namespace, output, socket, kubeconfig string
	cmd := &cobra.Command{
		Use:   "why KIND [NAMESPACE/]NAME",
		Short: "tell what was decided about an object, and because of what",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, ok := kinds[strings.ToLower(args[0])]
			if !ok {
				return fmt.Errorf("why %q: the journal knows node, pod, service, deployment, replicaset, daemonset, statefulset, job and "+
					"cronjob", args[0])
			}
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", output)
			}
			ref := journal.Ref{Kind: kind, Name: args[1]}
			if ns, name, ok := strings.Cut(args[1], "/"); ok {
				namespace, ref.Name = ns, name
			}
			if kind != "Node" {
				ref.Namespace = namespace
			}
			if kind == "Service" {
				return whyService(cmd, dataDir, socket, kubeconfig, output, ref)
			}
			records, err := cluster.Why(cmd.Context(), dataDir, ref)
			if err != nil {
				return err
			}
			if output == "json" {
				return json.NewEncoder(os.Stdout).Encode(records)
			}
			if len(records) == 0 {
				fmt.Printf("nothing was decided about %s %s that the journal still holds\n", kind, args[1])
				return nil
			}
			return journal.WriteStory(os.Stdout, records)
		},
	}
	dataDirFlag(cmd, &dataDir)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the object")
	cmd.Flags().StringVar(&socket, "socket", "", "for services: socket of a `berth proxy` outside a cluster of ours")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "",
		"for services, where no proxy answers: the API to ask (default: admin.kubeconfig of --data-dir)")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// whyService tells what the proxy programs for a Service, and then what the
// journal of the cluster holds, if there is one. Where no proxy answers it
// tells what one would program, from the API.
func whyService(cmd *cobra.Command, dataDir, socket, kubeconfig, output string, ref journal.Ref) error {
	q := url.Values{"namespace": {ref.Namespace}, "name": {ref.Name}}
	lines, failed := askProxy(cmd.Context(), proxySocket(dataDir, socket), "/proxy/service?"+q.Encode())
	if failed != nil {
		lines = []proxy.Line{{Text: fmt.Sprintf("no service proxy answers: %v", failed)},
			{Text: "rules it wrote go on working; `berth up` or `berth proxy` starts it, --socket names another's socket"}}
		would, err := serviceFromAPI(cmd.Context(), dataDir, kubeconfig, ref)
		if err != nil {
			lines = append(lines, proxy.Line{Text: fmt.Sprintf("the API does not answer either: %v (--kubeconfig names another)", err)})
			failed = errors.Join(failed, err)
		} else {
			failed = nil
			lines = append(append(lines, proxy.Line{Text: "as the API has it now, a proxy of this node would program:"}), would...)
		}
	}
	var records []journal.Record
	if socket == "" {
		var err error
		if records, err = cluster.Why(cmd.Context(), dataDir, ref); err != nil && cluster.Running(dataDir) != 0 {
			return err
		}
	}
	if failed != nil && len(records) == 0 {
		return fmt.Errorf("nothing can be told of Service %s/%s: %w\nstart the proxy (berth up, berth proxy), or name its --socket or a "+
			"--kubeconfig", ref.Namespace, ref.Name, failed)
	}
	if output == "json" {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"proxy": lines, "journal": records})
	}
	if err := printLines(cmd.OutOrStdout(), output, lines); err != nil {
		return err
	}
	return journal.WriteStory(cmd.OutOrStdout(), records)
}

// serviceFromAPI describes a Service from the objects of the API alone.
func serviceFromAPI(ctx context.Context, dataDir, kubeconfig string, ref journal.Ref) ([]proxy.Line, error) {
	if kubeconfig == "" {
		kubeconfig = filepath.Join(dataDir, "admin.kubeconfig")
	}
	rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	rc.Timeout = 10 * time.Second
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, err
	}
	node, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	if s, err := cluster.Ask(ctx, dataDir); err == nil {
		node = s.Settings.NodeName
	}
	return proxy.Describe(ctx, client, strings.ToLower(node), model.Name{Namespace: ref.Namespace, Name: ref.Name})
}
