package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// vm is an emulated computer that runs the image built by image/build.sh.
// Nothing it writes to its disk outlives it.
type vm struct {
	// image holds vmlinuz, initrd and root.img; host is the directory that the
	// machine sees as /host.
	image, host string
	// dir holds the machine's socket and console log.
	dir       string
	cpus      int
	memoryMiB int
	// nodes is how many NUMA nodes CPUs and memory are spread over.
	nodes int
	// accel is qemu's accelerator; options go to the kernel.
	accel, options string
}

func (m *vm) socket() string  { return filepath.Join(m.dir, "vm.sock") }
func (m *vm) console() string { return filepath.Join(m.dir, "console.log") }

// arguments are qemu's.
func (m *vm) arguments() []string {
	cpu := "max,la57=off" // five levels of page tables only cost time
	if m.accel == "kvm" {
		cpu = "host"
	}
	args := []string{
		"-accel", m.accel, "-cpu", cpu, "-smp", strconv.Itoa(m.cpus), "-m", strconv.Itoa(m.memoryMiB), "-nodefaults", "-display",
		"none",
		"-kernel", filepath.Join(m.image, "vmlinuz"), "-initrd", filepath.Join(m.image, "initrd"),
		"-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off nokaslr no_timer_check panic=-1 systemd.show_status=false " +
			m.options,
		"-serial", "file:" + m.console(),
		"-drive", "file=" + filepath.Join(m.image, "root.img") + ",format=raw,if=virtio,snapshot=on,cache=unsafe",
		"-device", "virtio-rng-pci", "-device", "virtio-serial",
		"-chardev", "socket,id=vm,path=" + m.socket() + ",server=on,wait=off", "-device", "virtserialport,chardev=vm,name=vm",
		"-virtfs", "local,path=" + m.host + ",mount_tag=host,security_model=none,multidevs=remap",
		"-nic", "user,restrict=on,model=virtio-net-pci",
	}
	if m.nodes > 1 {
		per := m.cpus / m.nodes
		for n := range m.nodes {
			args = append(args,
				"-object", fmt.Sprintf("memory-backend-ram,id=m%d,size=%dM", n, m.memoryMiB/m.nodes),
				"-numa", fmt.Sprintf("node,nodeid=%d,memdev=m%d,cpus=%d-%d", n, n, n*per, (n+1)*per-1))
		}
	}
	return args
}

// start boots the machine. It ends with ctx; the channel tells how.
func (m *vm) start(ctx context.Context) (<-chan error, error) {
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(m.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", m.arguments()...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the machine: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return ended, nil
}

// line is a connection to the machine's agent.
type line struct {
	conn net.Conn
	in   *bufio.Reader
}

// connect waits until the machine takes commands.
func (m *vm) connect(ctx context.Context) (*line, error) {
	var conn net.Conn
	for {
		var err error
		if conn, err = net.Dial("unix", m.socket()); err == nil {
			break
		}
		select { // qemu tells nobody that it listens
		case <-ctx.Done():
			return nil, fmt.Errorf("connecting to the machine: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	l := &line{conn: conn, in: bufio.NewReader(conn)}
	// The agent may be in the middle of what an earlier caller left.
	hello := fmt.Sprintf("VM-HELLO-%d", time.Now().UnixNano())
	if _, err := fmt.Fprintln(conn, "echo", hello); err != nil {
		return nil, fmt.Errorf("greeting the machine: %w", err)
	}
	return l, errors.Join(l.await(hello), l.await("VM-EXIT 0"))
}

// ready waits for the agent's greeting after a start of the machine.
func (l *line) ready() error { return l.await("VM-READY") }

func (l *line) await(word string) error {
	for {
		s, err := l.in.ReadString('\n')
		if err != nil {
			return fmt.Errorf("waiting for %s from the machine: %w", word, err)
		}
		if strings.TrimSpace(s) == word {
			return nil
		}
	}
}

// run runs a shell command in the machine and returns its status.
func (l *line) run(command string, out io.Writer) (int, error) {
	if strings.Contains(command, "\n") {
		return 0, errors.New("a command is one line")
	}
	if _, err := fmt.Fprintln(l.conn, command); err != nil {
		return 0, fmt.Errorf("sending a command: %w", err)
	}
	for {
		s, err := l.in.ReadString('\n')
		if err != nil {
			return 0, fmt.Errorf("the machine ended during %q: %w", command, err)
		}
		if status, ok := strings.CutPrefix(s, "VM-EXIT "); ok {
			return strconv.Atoi(strings.TrimSpace(status))
		}
		if strings.TrimSpace(s) == "VM-READY" {
			return 0, fmt.Errorf("the machine started again during %q", command)
		}
		if _, err := io.WriteString(out, s); err != nil {
			return 0, err
		}
	}
}
