package cli

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/ui/local"
)

func uiCommand() *cobra.Command {
	var o whyOptions
	var port int
	var print bool
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "open the status page of the cluster in a browser",
		Long: "Ui serves the status page on a loopback address of this host, with the rights of your kubeconfig, until it is " +
			"interrupted. " +
			"The address it prints holds a token that works once. Nothing can be changed through the page.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rc, err := o.client()
			if err != nil {
				return err
			}
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			p, err := local.New(rc, port, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "status page   %s\n              works once; ends with Ctrl-C\n", p.Address())
			if !print {
				remove, err := local.Open(ctx, p.Address())
				switch {
				case err == nil:
					defer remove()
				case !errors.Is(err, local.ErrNoBrowser):
					fmt.Fprintf(out, "              open it yourself: %v\n", err)
				}
			}
			return p.Run(ctx)
		},
	}
	clusterFlags(cmd, &o.dataDir)
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "",
		"the API to ask, and as whom (default: $KUBECONFIG, or admin.kubeconfig of --data-dir)")
	cmd.Flags().IntVar(&port, "port", 0, "port on 127.0.0.1 (default: any that is free)")
	cmd.Flags().BoolVar(&print, "print", false, "only print the address, open no browser")
	return cmd
}
