package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/snapshot"
)

// passphraseVariable is the environment's place for a passphrase.
const passphraseVariable = "BERTH_SNAPSHOT_PASSPHRASE"

func snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "save the whole cluster to one file, and restore it",
		Long: "A snapshot holds the store, the CAs and keys, the encryption keys and the cluster's settings. It is sealed with a\n" +
			"passphrase or a key file unless you ask for it to be open.",
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(snapshotSave(), snapshotList(), snapshotVerify(), snapshotRestore(), snapshotPrune(), snapshotKeygen())
	return cmd
}

// sealFlags are how a file is sealed or opened.
type sealFlags struct {
	passphraseFile, keyFile string
	unsealed                bool
}

func (s *sealFlags) add(f *pflag.FlagSet) {
	f.StringVar(&s.passphraseFile, "passphrase-file", "",
		"file with the passphrase (or environment "+passphraseVariable+", or you are asked)")
	f.StringVar(&s.keyFile, "key-file", "", "file with an age key, as berth snapshot keygen makes it, instead of a passphrase")
}

// given reads what the flags and the environment name; ok is false if nothing is.
func (s *sealFlags) given() (keys snapshot.Keys, ok bool, err error) {
	count := 0
	for _, is := range []bool{s.passphraseFile != "", s.keyFile != "", s.unsealed} {
		if is {
			count++
		}
	}
	if count > 1 {
		return keys, false, errors.New("--passphrase-file, --key-file and --unsealed-with-all-keys: give one of them")
	}
	switch phrase := os.Getenv(passphraseVariable); {
	case s.unsealed:
		return snapshot.NoKeys(), true, nil
	case s.keyFile != "":
		keys, err = snapshot.KeyFile(s.keyFile)
	case s.passphraseFile != "":
		keys, err = snapshot.PassphraseFile(s.passphraseFile)
	case phrase != "":
		if keys, err = snapshot.Passphrase(phrase); err != nil {
			err = fmt.Errorf("%s: %w", passphraseVariable, err)
		}
	default:
		return keys, false, nil
	}
	return keys, err == nil, err
}

// forSaving asks for a passphrase where none was given.
func (s *sealFlags) forSaving() (snapshot.Keys, error) {
	keys, ok, err := s.given()
	if ok || err != nil {
		return keys, err
	}
	first, err := askPassphrase("passphrase to seal the snapshot with: ")
	if err != nil {
		return keys, err
	}
	second, err := askPassphrase("the same again: ")
	if err != nil {
		return keys, err
	}
	if first != second {
		return keys, errors.New("the two passphrases differ")
	}
	return snapshot.Passphrase(first)
}

// forOpening asks for a passphrase if the file needs one and none was given.
func (s *sealFlags) forOpening(file string) (snapshot.Keys, error) {
	sealed, err := snapshot.SealOf(file)
	if err != nil || sealed == snapshot.Unsealed {
		return snapshot.NoKeys(), err
	}
	keys, ok, err := s.given()
	if ok || err != nil {
		return keys, err
	}
	if sealed == snapshot.SealedByKey {
		return keys, &snapshot.OpenError{File: file, Need: sealed}
	}
	phrase, err := askPassphrase("passphrase of " + filepath.Base(file) + ": ")
	if err != nil {
		return keys, err
	}
	return snapshot.Passphrase(phrase)
}

func askPassphrase(prompt string) (string, error) {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return "", fmt.Errorf("nothing says how the snapshot is sealed, and there is no terminal to ask on: give --passphrase-file, "+
			"--key-file or %s", passphraseVariable)
	}
	fmt.Fprint(os.Stderr, prompt)
	phrase, err := term.ReadPassword(int(os.Stdin.Fd()))
	fmt.Fprintln(os.Stderr)
	if err != nil {
		return "", fmt.Errorf("reading the passphrase: %w", err)
	}
	return string(phrase), nil
}

func needRoot(what string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("root is needed to %s: run it as root, for example with sudo", what)
	}
	return nil
}

// places are the data directory and the directory of snapshots.
type places struct{ dataDir, dir string }

func (p *places) add(cmd *cobra.Command) {
	dataDirFlag(cmd, &p.dataDir)
	cmd.Flags().StringVar(&p.dir, "dir", "", "directory of the snapshots (default: snapshots in the data directory)")
}

func (p *places) complete() (err error) {
	if p.dataDir, err = filepath.Abs(p.dataDir); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if p.dir == "" {
		p.dir = cluster.SnapshotDir(p.dataDir)
	}
	return nil
}

func snapshotSave() *cobra.Command {
	var (
		at   places
		seal sealFlags
		name string
	)
	cmd := &cobra.Command{
		Use:   "save",
		Short: "save the cluster to a file, while it runs or stopped",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("read the cluster's keys"); err != nil {
				return err
			}
			if err := at.complete(); err != nil {
				return err
			}
			keys, err := seal.forSaving()
			if err != nil {
				return err
			}
			now := time.Now()
			e, err := cluster.SaveSnapshot(cmd.Context(), at.dataDir, version, snapshot.Request{Dir: at.dir, Name: name, Keys: keys,
				Now: now})
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "saved %s: revision %d, %s, sealed: %s, in %s\n", e.File, e.Header.Revision, size(e.Bytes), e.Header.Sealed,
				time.Since(now).Round(time.Millisecond))
			if e.Header.Sealed == snapshot.Unsealed {
				fmt.Fprintln(w, "it is open: whoever reads it has every Secret, every CA and the key of every account of this cluster")
			}
			return nil
		},
	}
	at.add(cmd)
	seal.add(cmd.Flags())
	cmd.Flags().BoolVar(&seal.unsealed, "unsealed-with-all-keys", false,
		"do not seal it: whoever reads the file has every Secret, CA and key of the cluster")
	cmd.Flags().StringVar(&name, "name", "", "its name (default: time and node)")
	return cmd
}

func size(bytes int64) string {
	if bytes < 10<<20 {
		return fmt.Sprintf("%d KiB", (bytes+1023)>>10)
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}

// listed is a line of `berth snapshot ls -o json`.
type listed struct {
	File   string           `json:"file"`
	Bytes  int64            `json:"bytes"`
	Header *snapshot.Header `json:"header,omitempty"`
	Broken string           `json:"broken,omitempty"`
}

func snapshotList() *cobra.Command {
	var (
		at     places
		output string
	)
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list snapshots, newest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", output)
			}
			if err := at.complete(); err != nil {
				return err
			}
			all, err := snapshot.List(at.dir, cluster.SnapshotReader())
			if err != nil {
				return err
			}
			if output == "text" {
				return printSnapshots(cmd.OutOrStdout(), all, time.Now())
			}
			lines := []listed{}
			for _, e := range all {
				l := listed{File: e.File, Bytes: e.Bytes, Broken: e.Broken}
				if e.Header.Name != "" {
					l.Header = &e.Header
				}
				lines = append(lines, l)
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(lines)
		},
	}
	at.add(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func printSnapshots(w io.Writer, all []snapshot.Entry, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NAME\tTIME\tAGE\tNODE\tREVISION\tSIZE\tSEALED\tOPENS")
	for _, e := range all {
		name, h := strings.TrimSuffix(filepath.Base(e.File), snapshot.Suffix), e.Header
		opens := "yes"
		switch {
		case e.Newer:
			opens = "no, needs a newer berth: " + e.Broken
		case e.Broken != "":
			opens = "no: " + e.Broken
		}
		if h.Name == "" {
			fmt.Fprintf(t, "%s\t-\t-\t-\t-\t%s\t-\t%s\n", name, size(e.Bytes), opens)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", name, h.Time.Local().Format(time.DateTime), now.Sub(h.Time).Round(time.Second),
			h.Node,
			h.Revision, size(e.Bytes), h.Sealed, opens)
	}
	return t.Flush()
}

func snapshotVerify() *cobra.Command {
	var seal sealFlags
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "open a snapshot and check every byte of it, and write nothing",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := seal.forOpening(args[0])
			if err != nil {
				return err
			}
			m, _, err := snapshot.Verify(args[0], keys, cluster.SnapshotReader())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is whole: %s of node %s at %s, revision %d, %d parts\n", args[0], m.Cluster, m.Node,
				m.Time.Format(time.RFC3339), m.Revision, len(m.Parts))
			return nil
		},
	}
	seal.add(cmd.Flags())
	return cmd
}

func snapshotRestore() *cobra.Command {
	var (
		o    cluster.RestoreOptions
		seal sealFlags
		yes  bool
	)
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "make the cluster of a snapshot on this machine; say first what that does",
		Long: "Checks the whole file, says what it will do, asks, and then exchanges the state of the data directory at once. What was\n" +
			"there is moved aside, never deleted. Start the cluster with `berth up` (or `berth server`) afterwards.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := needRoot("restore a cluster"); err != nil {
				return err
			}
			if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
				return fmt.Errorf("--data-dir: %w", err)
			}
			o.File, o.Now = args[0], time.Now()
			if o.Keys, err = seal.forOpening(o.File); err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			o.Confirm = func(p *snapshot.Plan) error {
				for _, line := range p.Lines {
					fmt.Fprintln(w, line)
				}
				if yes {
					return nil
				}
				return askYes(w)
			}
			plan, err := cluster.RestoreSnapshot(o)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "restored %s in %s; start it with `berth %s --data-dir %s` and the flags it had\n", o.DataDir,
				time.Since(o.Now).Round(time.Millisecond), plan.Command, o.DataDir)
			return nil
		},
	}
	dataDirFlag(cmd, &o.DataDir)
	seal.add(cmd.Flags())
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&o.Force, "force", false, "move the state of a cluster that is there aside")
	cmd.Flags().StringVar(&o.NodeName, "node-name", "", "this machine's name in the cluster (default: the snapshot's)")
	return cmd
}

func askYes(w io.Writer) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return errors.New("nothing was done: there is no terminal to ask on; give --yes to do what is said above")
	}
	fmt.Fprint(w, "do that? type yes: ")
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}

func snapshotPrune() *cobra.Command {
	var (
		at     places
		keep   snapshot.Retention
		dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "delete snapshots that are neither among the newest nor young; never the newest",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep.Keep < 0 || keep.KeepFor < 0 || keep == (snapshot.Retention{}) {
				return errors.New("give --keep N, --keep-for D, or both: what neither keeps is deleted")
			}
			if err := at.complete(); err != nil {
				return err
			}
			all, err := snapshot.List(at.dir, cluster.SnapshotReader())
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			for _, e := range keep.Prune(all, time.Now()) {
				if dryRun {
					fmt.Fprintln(w, "would delete", e.File)
					continue
				}
				if err := snapshot.Remove(e); err != nil {
					return err
				}
				fmt.Fprintln(w, "deleted", e.File)
			}
			return nil
		},
	}
	at.add(cmd)
	cmd.Flags().IntVar(&keep.Keep, "keep", 0, "keep the newest so many")
	cmd.Flags().DurationVar(&keep.KeepFor, "keep-for", 0, "keep those that are younger (720h is 30 days)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be deleted")
	return cmd
}

func snapshotKeygen() *cobra.Command {
	return &cobra.Command{
		Use:   "keygen FILE",
		Short: "make a key file that seals and opens snapshots",
		Long: "FILE gets the secret key: keep it away from the machine. The public key that is printed, alone in a file, seals too and\n" +
			"opens nothing.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, public, err := snapshot.NewKey()
			if err != nil {
				return err
			}
			f, err := os.OpenFile(args[0], os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return fmt.Errorf("writing the key file: %w", err)
			}
			_, err = f.WriteString(text)
			if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
				return fmt.Errorf("writing the key file: %w", err)
			}
			fmt.Fprintln(cmd.OutOrStdout(), public)
			return nil
		},
	}
}

// scheduleFlags are the flags of scheduled snapshots.
func scheduleFlags(f *pflag.FlagSet, s *cluster.Snapshots) {
	s.Version = version
	f.DurationVar(&s.Every, "snapshot-every", 0, "save a snapshot this often (default: never)")
	f.IntVar(&s.Keep, "snapshot-keep", 5, "how many scheduled snapshots are kept")
	f.StringVar(&s.Dir, "snapshot-dir", "", "directory of scheduled snapshots (default: snapshots in the data directory)")
	f.StringVar(&s.KeyFile, "snapshot-key-file", "", "age key that seals them; a public key alone is enough")
	f.StringVar(&s.PassphraseFile, "snapshot-passphrase-file", "", "file with the passphrase that seals them")
	f.BoolVar(&s.Unsealed, "snapshot-unsealed-with-all-keys", false,
		"do not seal them: whoever reads a file has every Secret, CA and key of the cluster")
}
