package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/cluster"
)

// tokenCommand makes, lists and revokes the tokens that let hosts join.
func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "make, list and revoke the tokens that let hosts join", Args: cobra.NoArgs}
	cmd.AddCommand(tokenCreate(), tokenList(), tokenDelete())
	return cmd
}

func tokenCreate() *cobra.Command {
	var dataDir, description, server string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "create", Short: "make a token and print the line that joins a host with it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkTTL(cmd.ErrOrStderr(), ttl); err != nil {
				return err
			}
			client, err := adminClient(dataDir)
			if err != nil {
				return err
			}
			hash, err := cluster.CAHash(filepath.Join(dataDir, "pki", "ca.crt"))
			if err != nil {
				return err
			}
			if server == "" {
				s, err := cluster.Ask(cmd.Context(), dataDir)
				if err != nil {
					return fmt.Errorf("%w: start the cluster, or give --server", err)
				}
				server = s.APIURL()
			}
			token, err := cluster.CreateToken(cmd.Context(), client, ttl, description)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "berth join %s --token %s --ca-hash %s\n", server, token, hash)
			return err
		},
	}
	clusterFlags(cmd, &dataDir)
	cmd.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long hosts can join with it; 0 is for ever")
	cmd.Flags().StringVar(&description, "description", "", "what the token is for")
	cmd.Flags().StringVar(&server, "server", "", "address of the API server as the joining host sees it (default: this host's)")
	return cmd
}

// checkTTL warns of a token that never ends: anyone who finds it can add nodes.
func checkTTL(w io.Writer, ttl time.Duration) error {
	switch {
	case ttl < 0:
		return fmt.Errorf("--ttl %s: at least 1s, or 0 for a token that never ends", ttl)
	case ttl == 0:
		_, err := fmt.Fprintln(w,
			"warning: with --ttl 0 the token never ends, and anyone who has it can add nodes to the cluster: revoke it with `berth token "+
				"delete ID` when it is not needed any more")
		return err
	}
	return nil
}

func tokenList() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use: "list", Short: "list the tokens", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := adminClient(dataDir)
			if err != nil {
				return err
			}
			tokens, err := cluster.Tokens(cmd.Context(), client)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tEXPIRES\tDESCRIPTION")
			for _, t := range tokens {
				expires := "never"
				if !t.Expires.IsZero() {
					expires = t.Expires.Local().Format(time.DateTime)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", t.ID, expires, t.Description)
			}
			return w.Flush()
		},
	}
	clusterFlags(cmd, &dataDir)
	return cmd
}

func tokenDelete() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use: "delete ID", Short: "revoke a token; hosts that joined with it stay", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := adminClient(dataDir)
			if err != nil {
				return err
			}
			return cluster.DeleteToken(cmd.Context(), client, args[0])
		},
	}
	clusterFlags(cmd, &dataDir)
	return cmd
}

// adminClient is a client with the administrator's kubeconfig of dataDir.
func adminClient(dataDir string) (kubernetes.Interface, error) {
	file := filepath.Join(dataDir, "admin.kubeconfig")
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("no administrator's kubeconfig in %s (is a control plane on this host?): %w", dataDir, err)
	}
	return kubernetes.NewForConfig(cfg)
}
