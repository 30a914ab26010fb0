// Package berthtest gives Go tests a real cluster: API server, controllers,
// scheduler and, unless a test wants the API alone, a node with a container
// runtime. A cluster lies in memory where there is a tmpfs, has ports of its
// own, and ends with its test, also if the test process is killed.
//
//	func TestMine(t *testing.T) {
//		c := berthtest.Start(t, berthtest.APIOnly())
//		client := kubernetes.NewForConfigOrDie(c.Config)
//		...
//	}
//
// The berth program is taken from $BERTH_BIN, a directory or the program
// itself, or else from $PATH. A whole cluster needs root; APIOnly and
// ControlPlane do not.
package berthtest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/cluster/named"
)

// Cluster is a cluster that runs until its test ends.
type Cluster struct {
	// Config reaches the API server as an administrator. Its rate limits are
	// client-go's; a test may change its copy.
	Config *rest.Config
	// Kubeconfig is a file for programs that want one.
	Kubeconfig string
	// Name is what `berth status --name` and BERTH_NAME take.
	Name string
	// Dir is the cluster's data directory, with its logs.
	Dir string
}

// Option changes what Start starts.
type Option func(*options)

type options struct {
	command string
	flags   []string
	program string
}

// APIOnly starts API server and store alone: no controllers, no nodes, no root.
// Objects are validated, defaulted, stored and watched; nothing acts on them.
func APIOnly() Option {
	return func(o *options) {
		o.command = "server"
		// A list without * runs only what it names, and it names none.
		o.flags = append(o.flags, "--controllers=-deployment-controller")
	}
}

// ControlPlane starts API server, controllers and scheduler, without nodes and
// without root.
func ControlPlane() Option { return func(o *options) { o.command = "server" } }

// Flags are further flags of `berth up`, or of `berth server` without nodes.
func Flags(flags ...string) Option {
	return func(o *options) { o.flags = append(o.flags, flags...) }
}

// Program is the berth program to run.
func Program(path string) Option { return func(o *options) { o.program = path } }

// Start starts a cluster and returns when it is ready. It ends, and nothing of
// it is left, when the test and its subtests are done. A start that fails ends
// the test with what berth said.
func Start(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	c, end, err := start(opts)
	if err != nil {
		t.Fatalf("berthtest: %v", err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Errorf("berthtest: %v", err)
		}
	})
	return c
}

// StartMain is Start for TestMain, where one cluster serves all tests of a
// package. Whoever calls it calls end.
func StartMain(opts ...Option) (c *Cluster, end func() error, err error) { return start(opts) }

func start(opts []Option) (*Cluster, func() error, error) {
	o := options{command: "up"}
	for _, opt := range opts {
		opt(&o)
	}
	program, err := find(o.program)
	if err != nil {
		return nil, nil, err
	}
	c := &Cluster{Name: "t-" + strings.ToLower(rand.Text()[:10])}
	p, err := launch(program, append([]string{o.command, "--ephemeral", "--name=" + c.Name, "--progress-fd", "--lifeline"}, o.flags...))
	if err != nil {
		return nil, nil, err
	}
	if err := p.waitReady(); err != nil {
		return nil, nil, err
	}
	place, err := named.Default().Find(c.Name)
	if err == nil {
		c.Dir, c.Kubeconfig = place.DataDir, filepath.Join(place.DataDir, "admin.kubeconfig")
		c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w; %v", err, p.end())
	}
	return c, p.end, nil
}

// find is the berth program.
func find(given string) (string, error) {
	if given == "" {
		given = os.Getenv("BERTH_BIN")
	}
	if given == "" {
		path, err := exec.LookPath("berth")
		if err != nil {
			return "", fmt.Errorf("no berth program: put it in $PATH, or name it or its directory in $BERTH_BIN: %w", err)
		}
		return path, nil
	}
	st, err := os.Stat(given)
	if err != nil {
		return "", fmt.Errorf("no berth program: $BERTH_BIN: %w", err)
	}
	if st.IsDir() {
		return filepath.Join(given, "berth"), nil
	}
	return given, nil
}

// process is a berth that runs in the foreground. It ends when the lifeline is
// closed, which the kernel does for a test process that is killed.
type process struct {
	cmd      *exec.Cmd
	progress *os.File
	lifeline *os.File
	output   bytes.Buffer
}

func launch(program string, args []string) (*process, error) {
	p := &process{cmd: exec.Command(program, args...)}
	read, progress, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	defer progress.Close()
	line, lifeline, err := os.Pipe()
	if err != nil {
		read.Close()
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	defer line.Close()
	p.progress, p.lifeline = read, lifeline
	p.cmd.ExtraFiles = []*os.File{progress, line}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if err := p.cmd.Start(); err != nil {
		read.Close()
		lifeline.Close()
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	return p, nil
}

// waitReady follows the progress of the start, which ends with the pipe.
func (p *process) waitReady() error {
	var failed []string
	for lines := bufio.NewScanner(p.progress); lines.Scan(); {
		var e struct{ Stage, State, Detail string }
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.State == "fail" {
			failed = append(failed, e.Stage+": "+e.Detail)
		}
	}
	p.progress.Close()
	if len(failed) > 0 {
		p.end() //nolint:errcheck // why it failed is known already
		return fmt.Errorf("the cluster does not start: %s", strings.Join(failed, "; "))
	}
	// A pipe also ends with a process that died without a word.
	if !alive(p.cmd.Process.Pid) {
		p.end() //nolint:errcheck // what it said is told
		return fmt.Errorf("the cluster ended while starting: %s", strings.TrimSpace(p.output.String()))
	}
	return nil
}

// alive says whether a child still runs; one that ended waits to be reaped.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	return ok && !strings.HasPrefix(rest, "Z")
}

// end stops the cluster and waits until nothing is left of it.
func (p *process) end() error {
	p.lifeline.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("berth: %w: %s", err, strings.TrimSpace(p.output.String()))
	}
	return nil
}
