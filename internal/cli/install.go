package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/install"
)

// roleCommands are those that can be a service.
var roleCommands = map[string]func() *cobra.Command{"up": upCommand, "server": serverCommand, "join": joinCommand}

// installFlags are those of berth install itself; all others are the role's.
type installFlags struct {
	role, root                      string
	dryRun, noService, noKubeconfig bool
	bundle, dataDir                 string
	// settings are those of an earlier installation with the given ones over
	// them; configChanged is false if the file can stay as it is.
	settings      map[string]any
	configChanged bool
	roleFlags     *pflag.FlagSet
	completion    map[string]string
}

func installCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "install [--role up|server|join] [flags of that command]",
		Short: "make berth a service of this host, and start it",
		Long: "Copies this program and its bundle to /usr/local/lib/berth, writes the given flags to /etc/berth/config.yaml, a " +
			"systemd unit " +
			"or an OpenRC script, shell completion, and a context in your kubeconfig; enables the service and starts it.\n" +
			"A second run changes only what differs; flags that it is not given stay. `berth uninstall` takes all of it away.\n\n" +
			"Flags of its own:\n" +
			"  --role NAME       what the service runs: up (default), server or join\n" +
			"  --dry-run         print the files that would be written, and change nothing\n" +
			"  --no-service      install no service, and start nothing\n" +
			"  --no-kubeconfig   leave ~/.kube/config alone\n" +
			"  --root DIR        put DIR in front of every path (for images and tests)\n\n" +
			"All other flags are those of `berth up`, `berth server` or `berth join`.",
		DisableFlagParsing: true,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
			return cmd.Help()
		}
		i, err := parseInstall(args)
		if err != nil {
			return err
		}
		if i.completion, err = completions(cmd.Root()); err != nil {
			return err
		}
		return i.run(cmd.Context(), cmd.OutOrStdout())
	}
	return cmd
}

// parseInstall reads the command line of a role with the flags of install in it.
func parseInstall(args []string) (*installFlags, error) {
	i := &installFlags{role: "up"}
	for n, a := range args {
		if v, ok := strings.CutPrefix(a, "--role="); ok {
			i.role = v
		} else if a == "--role" && n+1 < len(args) {
			i.role = args[n+1]
		}
	}
	command, ok := roleCommands[i.role]
	if !ok {
		return nil, fmt.Errorf("--role %q: allowed are up, server and join; `berth agent` is configured as a kubelet is", i.role)
	}
	f := command().Flags()
	f.StringVar(&i.role, "role", "up", "")
	f.StringVar(&i.root, "root", "/", "")
	f.BoolVar(&i.dryRun, "dry-run", false, "")
	f.BoolVar(&i.noService, "no-service", false, "")
	f.BoolVar(&i.noKubeconfig, "no-kubeconfig", false, "")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	own := []string{"role", "root", "dry-run", "no-service", "no-kubeconfig"}
	i.settings = map[string]any{}
	var wrong error
	f.Visit(func(flag *pflag.Flag) {
		switch {
		case slices.Contains(own, flag.Name):
		case slices.Contains(notInFile, flag.Name):
			wrong = fmt.Errorf("--%s: a service does without it: it is for one start", flag.Name)
		case flag.Name == "bundle-dir":
			i.bundle = flag.Value.String()
		case flag.Value.Type() == "stringSlice":
			i.settings[flag.Name], _ = f.GetStringSlice(flag.Name)
		case flag.Value.Type() == "bool":
			i.settings[flag.Name] = flag.Value.String() == "true"
		default:
			i.settings[flag.Name] = flag.Value.String()
		}
	})
	if wrong != nil {
		return nil, wrong
	}
	switch rest := f.Args(); {
	case len(rest) == 1 && i.role == "join":
		i.settings["server"] = rest[0]
	case len(rest) > 0:
		return nil, fmt.Errorf("unknown argument %q", rest[0])
	}
	i.roleFlags = f
	return i, i.mergeConfig()
}

// mergeConfig lays the given flags over those of an earlier installation.
func (i *installFlags) mergeConfig() error {
	if i.bundle == "" {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("finding this program: %w; give --bundle-dir", err)
		}
		i.bundle = filepath.Dir(exe)
	}
	file := filepath.Join(i.root, "/etc/berth/config.yaml")
	given := i.settings
	before, there := map[string]any{}, false
	if _, err := os.Stat(file); err == nil {
		if before, err = readSettings(file); err != nil {
			return err
		}
		there = true
		for key := range before {
			if err := checkKey(i.roleFlags, file, key); err != nil {
				return err
			}
		}
	}
	i.settings = maps.Clone(before)
	maps.Copy(i.settings, given)
	i.configChanged = !there || len(given) > 0
	i.dataDir = host.DefaultDataDir
	if dir, ok := i.settings["data-dir"].(string); ok {
		i.dataDir = dir
	}
	if !filepath.IsAbs(i.dataDir) {
		return fmt.Errorf("--data-dir %s: a service needs a path from the root", i.dataDir)
	}
	return nil
}

// completions are the scripts of all shells.
func completions(root *cobra.Command) (map[string]string, error) {
	out := map[string]string{}
	for shell, write := range map[string]func(io.Writer) error{
		"bash": func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"zsh":  root.GenZshCompletion,
		"fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return nil, fmt.Errorf("making the completion for %s: %w", shell, err)
		}
		out[shell] = b.String()
	}
	return out, nil
}

func (i *installFlags) run(ctx context.Context, out io.Writer) error {
	h := hostBelow(i.root, out)
	init := h.Init()
	switch {
	case i.noService:
		init = ""
	case init == "":
		return fmt.Errorf("neither systemd nor OpenRC runs on this host, so it can have no service: give --no-service to install "+
			"the files "+
			"alone, and start it with `berth %s --detach --config /etc/berth/config.yaml`", i.role)
	}
	programs, err := install.Programs(i.bundle)
	if err != nil {
		return err
	}
	o := install.Options{Role: i.role, Init: init, Bundle: i.bundle, Programs: programs, Completions: i.completion}
	if i.configChanged {
		o.Settings = i.settings
	}
	files := install.Plan(o)
	if i.dryRun {
		for _, f := range files {
			fmt.Fprintln(out, f.Shown())
		}
		return nil
	}
	if i.root == "/" && os.Geteuid() != 0 {
		return errors.New("root is needed to install a service: run it as root, for example with sudo")
	}
	changed, err := h.Write(files, i.role, init, i.dataDir)
	if err != nil || init == "" {
		return err
	}
	if err := h.Start(ctx, init, changed); err != nil {
		return fmt.Errorf("%w: see `berth check --role %s`, and `journalctl -u berth` or /var/log/berth.log", err, i.role)
	}
	if i.role == "join" {
		return i.dropSecrets(h)
	}
	if i.noKubeconfig {
		return nil
	}
	who, err := caller()
	if err != nil {
		return err
	}
	return h.MergeKubeconfig(filepath.Join(i.dataDir, "admin.kubeconfig"), who)
}

// dropSecrets takes out of the file what only the first start of a node needs.
func (i *installFlags) dropSecrets(h install.Host) error {
	if i.settings["token"] == nil {
		return nil
	}
	for _, key := range []string{"token", "ca-hash", "ca-file"} {
		delete(i.settings, key)
	}
	_, err := h.Write(install.Plan(install.Options{Role: i.role, Settings: i.settings}), i.role, h.Init(), i.dataDir)
	return err
}

// hostBelow is the host below a root, with the programs that are there.
func hostBelow(root string, out io.Writer) install.Host {
	return install.Host{Root: root, Out: out, Run: func(ctx context.Context, program string, args ...string) error {
		path := ""
		for _, dir := range []string{"usr/bin", "bin", "usr/sbin", "sbin"} {
			if p := filepath.Join(root, dir, program); path == "" && isProgram(p) {
				path = p
			}
		}
		if path == "" {
			return fmt.Errorf("there is no %s on this host", program)
		}
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Stdout, cmd.Stderr = out, out
		return cmd.Run()
	}}
}

func isProgram(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0
}

// caller is the user who called sudo, or who runs this.
func caller() (install.User, error) {
	u, err := user.Current()
	if name := os.Getenv("SUDO_USER"); name != "" && os.Geteuid() == 0 {
		u, err = user.Lookup(name)
	}
	if err != nil {
		return install.User{}, fmt.Errorf("finding your home directory: %w", err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return install.User{}, fmt.Errorf("finding your home directory: %w", err)
	}
	gid, err := strconv.Atoi(u.Gid)
	return install.User{Home: u.HomeDir, UID: uid, GID: gid}, err
}
