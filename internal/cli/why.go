package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/journal"
)

// kinds are the words users type for what the journal knows.
var kinds = map[string]string{
	"node": "Node", "no": "Node", "pod": "Pod", "po": "Pod", "service": "Service", "svc": "Service", "deployment": "Deployment", "deploy": "Deployment",
	"replicaset": "ReplicaSet", "rs": "ReplicaSet", "daemonset": "DaemonSet", "ds": "DaemonSet", "statefulset": "StatefulSet", "sts": "StatefulSet", "job": "Job", "cronjob": "CronJob", "cj": "CronJob",
}

func whyCommand() *cobra.Command {
	var dataDir, namespace, output, socket string
	cmd := &cobra.Command{
		Use:   "why KIND [NAMESPACE/]NAME",
		Short: "tell what was decided about an object, and because of what",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, ok := kinds[strings.ToLower(args[0])]
			if !ok {
				return fmt.Errorf("why %q: the journal knows node, pod, service, deployment, replicaset, daemonset, statefulset, job and cronjob", args[0])
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
				return whyService(cmd, dataDir, socket, output, ref)
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
			return journal.Story(os.Stdout, records)
		},
	}
	dataDirFlag(cmd, &dataDir)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the object")
	cmd.Flags().StringVar(&socket, "socket", "", "for services: socket of a `berth proxy` outside a cluster of ours")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// whyService tells what the proxy programs for a Service, and then what the
// journal of the cluster holds, if there is one.
func whyService(cmd *cobra.Command, dataDir, socket, output string, ref journal.Ref) error {
	q := url.Values{"namespace": {ref.Namespace}, "name": {ref.Name}}
	lines, err := askProxy(cmd.Context(), proxySocket(dataDir, socket), "/proxy/service?"+q.Encode())
	if err != nil {
		return err
	}
	var records []journal.Record
	if cluster.Running(dataDir) != 0 && socket == "" {
		if records, err = cluster.Why(cmd.Context(), dataDir, ref); err != nil {
			return err
		}
	}
	if output == "json" {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"proxy": lines, "journal": records})
	}
	if err := printLines(cmd.OutOrStdout(), output, lines); err != nil {
		return err
	}
	return journal.Story(cmd.OutOrStdout(), records)
}
