package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/internal/cluster"
)

func uninstallCommand() *cobra.Command {
	var root string
	var yes bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "take away what `berth install` put here, with all containers and data",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			h := hostBelow(root, out)
			r, err := h.PlanRemoval()
			if err != nil {
				return err
			}
			if root == "/" && os.Geteuid() != 0 {
				return errors.New("root is needed to uninstall: run it as root, for example with sudo")
			}
			kept, err := cluster.Stored(root + r.DataDir)
			if err != nil {
				return err
			}
			if dir := kept.VolumesDir; dir != "" && dir != cluster.NoVolumes && !strings.HasPrefix(dir, r.DataDir+"/") {
				r.Removes = append(r.Removes, "local volumes in "+dir)
			}
			fmt.Fprintf(out, "removes:\n  %s\n", strings.Join(r.Removes, "\n  "))
			if len(r.Keeps) > 0 {
				fmt.Fprintf(out, "keeps:\n  %s\n", strings.Join(r.Keeps, "\n  "))
			}
			if !yes {
				if err := agree(cmd.InOrStdin(), out); err != nil {
					return err
				}
			}
			return h.Remove(cmd.Context(), r, func(dataDir string) error {
				if _, err := os.Stat(dataDir); errors.Is(err, os.ErrNotExist) {
					return nil // it was never started
				}
				return cluster.Down(cmd.Context(), dataDir, true, cluster.Printer(out, term.IsTerminal(int(os.Stdout.Fd()))))
			})
		},
	}
	cmd.Flags().StringVar(&root, "root", "/", "directory in front of every path (for images and tests)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// agree asks before data are lost.
func agree(in io.Reader, out io.Writer) error {
	fmt.Fprint(out, "This cannot be undone. Go on? [y/N] ")
	answer, err := bufio.NewReader(in).ReadString('\n')
	if word := strings.ToLower(strings.TrimSpace(answer)); err != nil || word != "y" && word != "yes" {
		return errors.New("nothing was removed: answer y, or give --yes")
	}
	return nil
}
