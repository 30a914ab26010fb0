package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	cliflag "k8s.io/component-base/cli/flag"
	cliterm "k8s.io/component-base/term"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/cluster/named"
	"github.com/berth-dev/berth/internal/nodes/health"
)

// progressFD is where a detached berth writes its progress.
const progressFD = 3

// lifelineFD is a pipe that the starting process holds open for as long as the
// cluster shall run.
const lifelineFD = 4

func upCommand() *cobra.Command {
	return startCommand(&cobra.Command{
		Use:   "up",
		Short: "start a whole cluster on this host",
		Long: "Starts API server, controllers, scheduler, node agent, service proxy and a container runtime.\n" +
			"Without --detach it runs in the foreground until interrupted; containers go on running and the next up finds them.",
		Args: cobra.NoArgs,
	}, cluster.RoleWhole)
}

func serverCommand() *cobra.Command {
	return startCommand(&cobra.Command{
		Use:   "server",
		Short: "start a control plane alone; hosts join it with `berth join`",
		Long: "Starts API server, controllers and scheduler, on the embedded store or on an external etcd (--etcd-servers).\n" +
			"`berth token create` prints the line that lets another host join.",
		Args: cobra.NoArgs,
	}, cluster.RoleServer)
}

func joinCommand() *cobra.Command {
	return startCommand(&cobra.Command{
		Use:   "join [https://SERVER:6443]",
		Short: "make this host a node of a cluster",
		Long: "Starts node agent, service proxy and a container runtime, and joins the cluster of SERVER with a bootstrap token.\n" +
			"Later starts need neither server nor token. `berth down` stops the node, `berth down --purge` also removes what it wrote.",
		Args: cobra.MaximumNArgs(1),
	}, cluster.RoleNode)
}

// startCommand gives cmd the flags of a role and the way to start it.
func startCommand(cmd *cobra.Command, role cluster.Role) *cobra.Command {
	cfg := cluster.Config{Settings: cluster.Settings{Role: role}}
	var start starter
	var file string
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := fillFlags(cmd.Flags(), file, os.LookupEnv); err != nil {
			return err
		}
		if len(args) > 0 {
			cfg.ServerURL = args[0]
		}
		if cmd.Flags().Changed("data-dir") {
			start.name = "" // of the environment: the flag wins
		}
		cfg.Hardened = given(cmd.Flags(), "hardened")
		return start.run(cmd.Context(), &cfg)
	}
	var sections cliflag.NamedFlagSets
	f := sections.FlagSet("start")
	f.StringVar(&file, "config", os.Getenv("BERTH_CONFIG"),
		"file with flags as keys (YAML); flags and BERTH_FLAG_NAME in the environment win over it (environment: BERTH_CONFIG)")
	dataDirFlag(cmd, &cfg.DataDir)
	f.StringVar(&start.name, "name", nameOfEnvironment(),
		"name of the cluster: it gets a directory, ports and address ranges of its own (see berth ls, berth delete)")
	if role != cluster.RoleNode {
		f.BoolVar(&start.ephemeral, "ephemeral", false,
			"a throw-away cluster: its data lie in memory where there is a tmpfs, and go when it ends (with --detach: at berth delete)")
	}
	f.BoolVar(&start.detach, "detach", false, "return once it is ready; it goes on in the background")
	f.IntVar(&start.portsFrom, "ports-from", 0, "use consecutive ports from this one on, instead of the usual ones")
	f.StringVar(&cfg.NodeName, "node-name", "", "name of this node (default: the host name)")
	f.StringVar(&cfg.NodeIP, "node-ip", "", "this host's address (default: that of the default route)")
	f.IntVar(&cfg.Ports.DNS, "dns-port", 0, "port of cluster DNS on this host's address, UDP and TCP (default 10053)")
	f.IntVar(&cfg.Ports.Metrics, "metrics-port", 0, "port of the controllers' metrics on loopback (default 10257)")
	f.StringVar(&cfg.LogFormat, "log-format", "text", "format of the log files: text or json")
	f.StringVar(&cfg.LogLevel, "log-level", "info", "minimum level that is logged: debug, info, warn or error")
	if role != cluster.RoleNode {
		controlFlags(sections.FlagSet("cluster"), &cfg)
		cfg.NodeHealth = health.Defaults()
		cfg.NodeHealth.AddFlags(sections.FlagSet("node lifecycle"))
		scheduleFlags(sections.FlagSet("snapshot"), &cfg.Snapshots)
		cfg.AddServerFlags(sections.FlagSet("API server"))
	} else {
		joinFlags(sections.FlagSet("join"), &cfg)
	}
	if role != cluster.RoleServer {
		nodeFlags(sections.FlagSet("node"), &cfg)
	}
	f.BoolVar(&start.child, "progress-fd", false, "write progress as JSON to file descriptor 3")
	f.BoolVar(&start.lifeline, "lifeline", false, "end when the pipe of file descriptor 4 does")
	for _, hidden := range []string{"progress-fd", "lifeline"} {
		if err := f.MarkHidden(hidden); err != nil {
			panic(err)
		}
	}
	helpInSections(cmd, sections)
	cmd.MarkFlagsMutuallyExclusive("data-dir", "name")
	if role != cluster.RoleNode {
		cmd.MarkFlagsMutuallyExclusive("data-dir", "ephemeral")
	}
	return cmd
}

// helpInSections gives cmd the flags of all sections and shows them by section;
// a flag that cmd has already is shown in the first.
func helpInSections(cmd *cobra.Command, sections cliflag.NamedFlagSets) {
	cmd.InitDefaultHelpFlag()
	sections.FlagSets[sections.Order[0]].AddFlagSet(cmd.Flags())
	for _, set := range sections.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	columns, _, err := cliterm.TerminalSize(os.Stdout)
	if err != nil {
		columns = 0 // no terminal: lines are not wrapped
	}
	cliflag.SetUsageAndHelpFunc(cmd, sections, columns)
}

func controlFlags(f *pflag.FlagSet, cfg *cluster.Config) {
	f.StringVar(&cfg.ClusterCIDR, "cluster-cidr", "",
		"CIDR of pod addresses, or one of each family with a comma between (default 10.244.0.0/16)")
	f.StringVar(&cfg.ServiceCIDR, "service-cidr", "",
		"CIDR of service addresses, or one of each family, the primary one first (default 10.96.0.0/16)")
	f.StringVar(&cfg.ClusterDomain, "cluster-domain", "", "DNS domain of the cluster (default cluster.local)")
	f.StringVar((*string)(&cfg.Network), "network", "",
		"pod network backend: auto (routes, VXLAN beyond a router), routes, vxlan, wireguard (all of it encrypted), or "+
			"none to leave it to a CNI of your own (default auto)")
	f.StringVar(&cfg.LoadBalancer, "load-balancer", "",
		"what gives addresses to Services of type LoadBalancer: node (the addresses of the nodes) or none (default node)")
	f.StringVar(&cfg.ManifestsDir, "manifests-dir", "",
		"directory of manifests to apply now and when they change, or none (default: manifests in the data directory)")
	f.StringSliceVar(&cfg.ServerNames, "tls-san", nil, "further names and addresses in the API server's certificate")
	f.IntVar(&cfg.Ports.API, "api-port", 0, "port of the API server (default 6443)")
	f.DurationVar(&cfg.CertificateLife, "certificate-lifetime", 0,
		"how long certificates are valid; they are renewed while the cluster runs (default 8760h)")
	f.BoolVar(&cfg.ManualServing, "manual-serving-approval", false,
		"leave the approval of agents' serving certificates to people (kubectl certificate approve)")
	f.StringSliceVar(&cfg.EtcdServers, "etcd-servers", nil, "URLs of an external etcd cluster, instead of the embedded store")
	f.StringVar(&cfg.EtcdCAFile, "etcd-cafile", "", "CA certificate of the external etcd")
	f.StringVar(&cfg.EtcdCertFile, "etcd-certfile", "", "client certificate for the external etcd")
	f.StringVar(&cfg.EtcdKeyFile, "etcd-keyfile", "", "client key for the external etcd")
	f.StringVar(&cfg.CloudProvider, "cloud-provider", "",
		"inventory: follow a list of machines, and delete nodes that are silent and not on it (default: no cloud)")
	f.StringVar(&cfg.CloudConfig, "cloud-config", "", "the list of machines: a file or an https:// address")
	f.StringSliceVar(&cfg.Controllers, "controllers", nil,
		"controllers to run: * is all, NAME adds one, -NAME leaves one out (default *); berth controllers runs node controllers "+
			"elsewhere")
}

func nodeFlags(f *pflag.FlagSet, cfg *cluster.Config) {
	f.StringVar(&cfg.AgentConfig, "agent-config", "",
		"file with a KubeletConfiguration; what the cluster itself sets (ports, paths, DNS, CA, cgroups) wins over it")
	f.StringVar(&cfg.VolumesDir, "volumes-dir", "",
		"directory of this node's local volumes (StorageClass local), or none (default: volumes in the data directory)")
	f.StringVar(&cfg.CredentialProviders, "image-credential-provider-config", "",
		"file or directory with a CredentialProviderConfig, for registries whose passwords a plugin knows")
	f.StringVar(&cfg.CredentialProviderDir, "image-credential-provider-bin-dir", "", "directory of credential provider plugins")
	f.StringVar(&cfg.Registries, "registries", "",
		"file with mirrors, credentials and TLS of registries, as k3s reads it (default: registries.yaml in the data directory or "+
			"/etc/berth)")
	f.StringVar(&cfg.ContainerdConfigDir, "containerd-config-dir", "",
		"directory of *.toml files that the bundled containerd merges into its configuration (default: containerd.d in the data directory)")
	f.BoolVar(&cfg.NRI, "nri", false,
		"let NRI plugins of the bundled containerd change containers (socket: run/nri.sock in the data directory)")
	f.BoolVar(&cfg.NoCDI, "no-cdi", false, "ignore device specifications in /etc/cdi and /var/run/cdi")
	f.IntVar(&cfg.Ports.Agent, "agent-port", 0, "port of the node agent (default 10250)")
	f.IntVar(&cfg.Ports.AgentHealthz, "agent-healthz-port", 0, "port of the agent's health check on loopback (default 10248)")
	f.IntVar(&cfg.Ports.ProxyHealthz, "proxy-healthz-port", 0, "port of the proxy's health check (default 10256)")
	f.IntVar(&cfg.Ports.ProxyMetrics, "proxy-metrics-port", 0, "port of the proxy's metrics on loopback (default 10249)")
	f.IntVar(&cfg.Ports.WireGuard, "wireguard-port", 0, "UDP port of this node with network wireguard (default 51820)")
	f.BoolVar(&cfg.NetworkPolicy, "network-policy", true, "enforce NetworkPolicy on this node's pods")
	f.Bool("hardened", false, "containers lack "+strings.Join(container.RuntimeExtras, ", ")+
		" unless their capabilities.add names them (or ALL) or they are privileged; later starts keep it until --hardened=false")
	f.StringVar(&cfg.BundleDir, "bundle-dir", "", "directory of the runtime bundle (default: that of this program)")
	f.StringVar(&cfg.ImagesDir, "images-dir", "", "directory of OCI archives to import (default: images in the bundle)")
	f.StringVar(&cfg.RuntimeEndpoint, "container-runtime-endpoint", "",
		"CRI socket of a runtime that is already there, instead of the bundled one")
}

// given is a boolean flag as it was given; nil if it was not.
func given(f *pflag.FlagSet, name string) *bool {
	flag := f.Lookup(name)
	if flag == nil || !flag.Changed {
		return nil
	}
	value := flag.Value.String() == "true"
	return &value
}

func joinFlags(f *pflag.FlagSet, cfg *cluster.Config) {
	f.StringVar(&cfg.ServerURL, "server", "", "API server of the cluster to join (https://SERVER:6443), as the argument")
	f.StringVar(&cfg.Join.Token, "token", "", "bootstrap token, for the first start")
	f.StringVar(&cfg.Join.CAHash, "ca-hash", "", "hash of the cluster's CA certificate (sha256:...)")
	f.StringVar(&cfg.Join.CAFile, "ca-file", "", "file with the cluster's CA certificate, instead of its hash")
}

// starter is how a role is started.
type starter struct {
	portsFrom int
	detach    bool
	child     bool
	// lifeline is set for a process that must not outlive the one that started
	// it, however that ends.
	lifeline  bool
	name      string
	ephemeral bool
	// generated is true for a name that nobody chose.
	generated bool
	// place is what a name stands for.
	place named.Place
}

func (s starter) run(ctx context.Context, cfg *cluster.Config) (err error) {
	if err := s.nameIt(cfg); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.abandon()
		}
	}()
	if s.portsFrom != 0 {
		cfg.Ports = cluster.PortsFrom(s.portsFrom)
	}
	if err := cfg.Complete(); err != nil {
		return err
	}
	if pid := cluster.Running(cfg.DataDir); pid != 0 {
		if s.detach {
			return alreadyUp(ctx, cfg.DataDir, pid)
		}
		return &cluster.ErrRunning{DataDir: cfg.DataDir, PID: pid}
	}
	if s.detach {
		// What is known to fail fails here, before anything is written.
		if err := cfg.Check(); err != nil {
			return err
		}
		return detached(ctx, cfg, s.generated)
	}
	if s.lifeline {
		// Who reads the output may be gone: writing it must not end the clean-up.
		signal.Ignore(syscall.SIGPIPE)
		var cancel context.CancelFunc
		ctx, cancel = untilClosed(ctx, os.NewFile(lifelineFD, "lifeline"))
		defer cancel()
	}
	err = foreground(ctx, cfg, s.child)
	if err == nil && cfg.Ephemeral && (!s.child || s.lifeline) {
		err = throwAway(cfg)
	}
	return err
}

// untilClosed gives a context that ends when the other end of a pipe is closed.
func untilClosed(ctx context.Context, pipe *os.File) (context.Context, context.CancelFunc) {
	// The runtime outlives this process: it must not inherit the pipe.
	unix.CloseOnExec(int(pipe.Fd()))
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		io.Copy(io.Discard, pipe) //nolint:errcheck // an error ends it as well
		pipe.Close()
		cancel()
	}()
	return ctx, cancel
}

func dataDirFlag(cmd *cobra.Command, into *string) {
	cmd.Flags().StringVar(into, "data-dir", defaultDataDir(),
		"directory of everything the cluster writes (environment: BERTH_DATA_DIR)")
}

// foreground runs the cluster in this process. A service manager that asked
// for it is told when it is ready and when it ends.
func foreground(ctx context.Context, cfg *cluster.Config, child bool) error {
	manager, err := takeNotifier()
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopping := context.AfterFunc(ctx, func() { manager.say("STOPPING=1") }) //nolint:errcheck // it is only told
	defer stopping()
	emit := cluster.Printer(os.Stdout, term.IsTerminal(int(os.Stdout.Fd())))
	if child {
		// The runtime outlives this process: it must not hold the pipe open.
		unix.CloseOnExec(progressFD)
		pipe := os.NewFile(progressFD, "progress")
		emit = cluster.Encoder(pipe)
		go func() {
			<-ready
			pipe.Close()
		}()
	} else {
		go func() {
			select {
			case <-ready:
				if err := manager.say("READY=1"); err != nil {
					fmt.Fprintln(os.Stderr, "berth:", err)
				}
				ended(ctx, cfg, os.Stdout)
				fmt.Println("\nRunning in the foreground; stop with ctrl-c (containers go on) or `berth down`.")
			case <-ctx.Done():
			}
		}()
	}
	cfg.Restart = func() error { return again(manager) }
	var shown atomic.Bool
	err = cluster.Up(ctx, cfg, func(e cluster.Event) {
		if e.State == "fail" {
			shown.Store(true)
		}
		emit(e)
	}, ready)
	if err != nil && child && !shown.Load() {
		// No stage said it: the command that waits must still hear it.
		emit(cluster.Event{Stage: "start", State: "fail", Detail: err.Error()})
	}
	return err
}

// again replaces this process by a new one with the same arguments. No one
// waits for its progress any more.
func again(manager notifier) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	args := slices.DeleteFunc(slices.Clone(os.Args), func(a string) bool { return a == "--progress-fd" })
	env := os.Environ()
	if manager.socket != "" {
		env = append(env, "NOTIFY_SOCKET="+manager.socket)
	}
	return fmt.Errorf("starting %s again: %w", exe, syscall.Exec(exe, args, env))
}

// detached starts this program again in a session of its own and follows its
// progress until the node is Ready or the start failed.
func detached(ctx context.Context, cfg *cluster.Config, tellName bool) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	args := append([]string{cfg.Role.Command(), "--progress-fd"}, slices.DeleteFunc(slices.Clone(os.Args[2:]), func(a string) bool {
		return a == "--detach" || strings.HasPrefix(a, "--detach=")
	})...)
	if tellName {
		args = append(args, "--name="+cfg.Name)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("opening the progress pipe: %w", err)
	}
	defer r.Close()
	if err := os.MkdirAll(cfg.Path("logs"), 0o755); err != nil {
		return fmt.Errorf("making the log directory: %w", err)
	}
	out, err := os.OpenFile(cfg.Path("logs", cluster.CrashLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("opening the crash log: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(exe, args...)
	cmd.Dir = "/"
	if wd, err := os.Getwd(); err == nil {
		cmd.Dir = wd // relative paths among the flags stay true
	}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = out, out, []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the background process: %w", err)
	}
	w.Close()
	stop := context.AfterFunc(ctx, func() { cmd.Process.Signal(syscall.SIGTERM) }) //nolint:errcheck // it may have ended
	defer stop()
	failed := follow(r, os.Stdout)
	if failed || ctx.Err() != nil {
		cmd.Wait() //nolint:errcheck // its failure was shown
		return errSilent
	}
	s, err := cluster.Ask(ctx, cfg.DataDir)
	if err != nil || !s.Ready {
		cmd.Wait() //nolint:errcheck // what it said last is in the crash log
		return fmt.Errorf("the cluster ended while starting: see %s", cfg.Path("logs"))
	}
	ended(ctx, cfg, os.Stdout)
	return nil
}

// follow prints progress until the pipe closes and says whether a stage
// failed.
func follow(r io.Reader, w io.Writer) (failed bool) {
	show := cluster.Printer(w, term.IsTerminal(int(os.Stdout.Fd())))
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		var e cluster.Event
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			continue
		}
		show(e)
		failed = failed || e.State == "fail"
	}
	return failed
}

// alreadyUp is what a second `up` says: one status line, and success.
func alreadyUp(ctx context.Context, dataDir string, pid int) error {
	s, err := cluster.Ask(ctx, dataDir)
	if err != nil {
		return fmt.Errorf("a cluster is running on %s (process %d) but does not answer: %w", dataDir, pid, err)
	}
	fmt.Printf("already up: %s, node %s, API on port %d, %s old, process %d\n", s.Instance, s.Settings.NodeName, s.Settings.Ports.API,
		time.Since(s.Since).Round(time.Second), s.PID)
	return nil
}

// ended closes a successful start: the node table and what to type next.
func ended(ctx context.Context, cfg *cluster.Config, w io.Writer) {
	exe, err := os.Executable()
	if err != nil {
		exe = "berth"
	}
	fmt.Fprintln(w)
	if cfg.Role == cluster.RoleNode {
		fmt.Fprintf(w, "node %s joined %s\n", cfg.NodeName, cfg.ServerURL)
		return
	}
	cmd := exec.CommandContext(ctx, exe, "kubectl", "--kubeconfig", cfg.Path("admin.kubeconfig"), "get", "nodes", "-o", "wide")
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Run(); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(w, "listing nodes:", err)
	}
	call := "bin/berth"
	if short := os.Args[0]; !strings.Contains(short, "/") || strings.HasPrefix(short, "bin/") {
		call = short
	}
	env := ""
	if cfg.Name != "" {
		env = "BERTH_NAME=" + cfg.Name + " "
	} else if cfg.DataDir != host.DefaultDataDir {
		env = "BERTH_DATA_DIR=" + cfg.DataDir + " "
	}
	if cfg.Role == cluster.RoleServer {
		fmt.Fprintf(w, "\nnext: %s%s token create   # prints the line that lets a host join\n", env, call)
		return
	}
	fmt.Fprintf(w, "\nnext: %s%s kubectl apply -f examples/hello.yaml\n", env, call)
}
