package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/cluster"
)

func secretsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "secrets", Short: "look after how Secrets are stored", Args: cobra.NoArgs}
	var dataDir string
	rotate := &cobra.Command{
		Use:   "rotate",
		Short: "encrypt what is stored under a new key",
		Long: "Makes a new key, writes every Secret under it and forgets the old keys. The cluster goes on meanwhile.\n" +
			"With a configuration of your own (--encryption-provider-config) no key is made: put one first in the file, then\n" +
			"run this to write everything under it, then remove the old key from the file.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			done, err := cluster.RotateSecrets(cmd.Context(), dataDir)
			if err != nil {
				return err
			}
			key := "the first key of"
			if done.NewKey {
				key = "a new key in"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d objects are encrypted with %s %s\n", done.Objects, key, done.File)
			return nil
		},
	}
	clusterFlags(rotate, &dataDir)
	cmd.AddCommand(rotate)
	return cmd
}
