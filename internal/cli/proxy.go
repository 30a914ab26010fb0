package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/proxy"
	"github.com/berth-dev/berth/internal/proxy/config"
	"github.com/berth-dev/berth/internal/proxy/launch"
)

// proxyCommand runs the service proxy against any API server.
func proxyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "run the service proxy against any conformant API server",
		Long: "Reads a KubeProxyConfiguration (v1alpha1) and the flags people use with kube-proxy. Fields that are not supported are " +
			"refused by name.",
		Args: cobra.NoArgs,
	}
	flags := config.AddFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := flags.Load(); err != nil {
			return err
		}
		log := slog.New(stderrLog(flags.Config.Logging.Format, verbosity(int(flags.Config.Logging.Verbosity))))
		return launch.Run(cmd.Context(), flags, log)
	}
	cmd.AddCommand(traceCommand())
	return cmd
}

func traceCommand() *cobra.Command {
	var dataDir, socket, output string
	cmd := &cobra.Command{
		Use:   "trace SOURCE DESTINATION PORT[/tcp|udp|sctp]",
		Short: "show where the first packet of a connection goes, and why",
		Args:  cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", output)
			}
			if _, err := proxy.ParsePacket(args[0], args[1], args[2]); err != nil {
				return err
			}
			q := url.Values{"src": {args[0]}, "dst": {args[1]}, "port": {args[2]}}
			lines, err := askProxy(cmd.Context(), proxySocket(dataDir, socket), "/proxy/trace?"+q.Encode())
			if err != nil {
				return err
			}
			return printLines(cmd.OutOrStdout(), output, lines)
		},
	}
	dataDirFlag(cmd, &dataDir)
	cmd.Flags().StringVar(&socket, "socket", "", "socket of a berth proxy (default: the cluster of --data-dir if it runs, else "+
		config.DefaultSocket+")")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// proxySocket is where a proxy answers: that of the cluster, or its own.
func proxySocket(dataDir, given string) string {
	switch {
	case given != "":
		return given
	case cluster.Running(dataDir) != 0:
		return cluster.ControlSocket(dataDir)
	}
	return config.DefaultSocket
}

// askProxy gets the proxy's answer to a question.
func askProxy(ctx context.Context, socket, path string) ([]proxy.Line, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://proxy"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking the service proxy on %s: %w", socket, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		why, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		if err != nil {
			return nil, fmt.Errorf("asking the service proxy on %s: %w", socket, err)
		}
		return nil, fmt.Errorf("asking the service proxy on %s: %s", socket, strings.TrimSpace(string(why)))
	}
	var lines []proxy.Line
	if err := json.NewDecoder(resp.Body).Decode(&lines); err != nil {
		return nil, fmt.Errorf("asking the service proxy on %s: %w", socket, err)
	}
	return lines, nil
}

// printLines shows the steps, and what the kernel says of each.
func printLines(w io.Writer, output string, lines []proxy.Line) error {
	if output == "json" {
		return json.NewEncoder(w).Encode(lines)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range lines {
		kernel := ""
		if l.Kernel != "" {
			kernel = "kernel: " + l.Kernel
		}
		fmt.Fprintf(tw, "%s\t%s\n", l.Text, kernel)
	}
	return tw.Flush()
}
