package hostcheck

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/cluster/host"
)

// Probe reads the facts below root: "/" for this host, a recorded tree in tests.
// What cannot be read is unknown, which Judge takes for missing.
func Probe(root string) hostFacts {
	p := prober(root)
	f := hostFacts{Modules: map[string]moduleState{}, Sysctls: map[string]string{}, Tools: map[string]string{}, Processes: map[string]int{}}
	var err error
	if f.Host, err = host.Probe(root); err != nil {
		f.HostError = err.Error()
	}
	p.release(&f)
	f.Kernel = p.line("proc/sys/kernel/osrelease")
	f.Hostname = p.line("proc/sys/kernel/hostname")
	switch {
	case f.Host.Systemd:
		f.Init = "systemd"
	case p.exists("run/openrc") || p.exists("sbin/openrc-run"):
		f.Init = "openrc"
	}
	p.modules(&f)
	for _, ns := range namespaces {
		if p.exists("proc/self/ns/" + ns) {
			f.Namespaces = append(f.Namespaces, ns)
		}
	}
	for _, name := range sysctls {
		if p.exists("proc/sys/" + strings.ReplaceAll(name, ".", "/")) {
			f.Sysctls[name] = p.line("proc/sys/" + strings.ReplaceAll(name, ".", "/"))
		}
	}
	for line := range strings.Lines(p.text("proc/self/status")) {
		if hexa, ok := strings.CutPrefix(line, "CapEff:"); ok {
			f.Capabilities, _ = strconv.ParseUint(strings.TrimSpace(hexa), 16, 64)
		}
	}
	for _, name := range tools {
		for _, dir := range []string{"usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"} {
			if p.exists(filepath.Join(dir, name)) {
				f.Tools[name] = "/" + filepath.Join(dir, name)
				break
			}
		}
	}
	f.MemoryKiB, f.SwapKiB = p.memory("MemTotal:"), p.memory("SwapTotal:")
	p.processes(&f)
	if p.exists("run/systemd/timesync/synchronized") {
		synced := true
		f.ClockSynced = &synced
	} else if root == "/" {
		var t unix.Timex
		if state, err := unix.Adjtimex(&t); err == nil { // 5 is TIME_ERROR: nobody disciplines the clock
			synced := state != 5
			f.ClockSynced = &synced
		}
	}
	return f
}

// What Probe looks for.
var (
	namespaces = []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"}
	modules    = []string{"overlay", "nf_tables", "bridge", "br_netfilter", "veth", "vxlan", "wireguard", "nf_conntrack"}
	sysctls    = []string{"fs.inotify.max_user_instances", "fs.inotify.max_user_watches", "kernel.pid_max", "user.max_user_namespaces",
		"net.ipv4.ip_forward"}
	tools = []string{"crun", "runc", "modprobe"}
	known = []string{"kubelet", "k3s", "k0s", "microk8s", "containerd", "dockerd", "crio", "firewalld", "chronyd", "ntpd", "ntpd-rs",
		"openntpd", "systemd-timesyn"} // 15 bytes is what a process name holds
)

// prober reads below a root.
type prober string

func (p prober) text(name string) string {
	data, err := os.ReadFile(filepath.Join(string(p), name))
	if err != nil {
		return ""
	}
	return string(data)
}

func (p prober) line(name string) string { return strings.TrimSpace(p.text(name)) }

func (p prober) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(string(p), name))
	return err == nil
}

// release reads os-release.
func (p prober) release(f *hostFacts) {
	values := map[string]string{}
	text := p.text("etc/os-release")
	if text == "" {
		text = p.text("usr/lib/os-release")
	}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[k] = strings.Trim(v, `"'`)
		}
	}
	f.Name = values["PRETTY_NAME"]
	for _, id := range append([]string{values["ID"]}, strings.Fields(values["ID_LIKE"])...) {
		if slices.Contains(distributions, id) {
			f.Distribution = id
			return
		}
	}
}

// modules finds out which are loaded, built in, or can be loaded.
func (p prober) modules(f *hostFacts) {
	present, loadable := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(p.text("proc/modules")) {
		name, _, _ := strings.Cut(line, " ")
		present[name] = true
	}
	base := func(path string) string {
		name, _, _ := strings.Cut(filepath.Base(strings.TrimSpace(path)), ".ko")
		return strings.ReplaceAll(name, "-", "_")
	}
	dir := "lib/modules/" + f.Kernel
	if !p.exists(dir) {
		dir = "usr/" + dir
	}
	f.ModulesListed = p.exists(dir + "/modules.builtin")
	for line := range strings.Lines(p.text(dir + "/modules.builtin")) {
		present[base(line)] = true
	}
	for line := range strings.Lines(p.text(dir + "/modules.dep")) {
		path, _, _ := strings.Cut(line, ":")
		loadable[base(path)] = true
	}
	for line := range strings.Lines(p.text("proc/filesystems")) {
		if strings.TrimSpace(strings.TrimPrefix(line, "nodev")) == "overlay" {
			present["overlay"] = true
		}
	}
	if p.exists("proc/sys/net/bridge") {
		present["br_netfilter"], present["bridge"] = true, true
	}
	if p.exists("proc/sys/net/netfilter/nf_conntrack_max") {
		present["nf_conntrack"] = true
	}
	for _, m := range modules {
		switch {
		case present[m]:
			f.Modules[m] = ModulePresent
		case loadable[m]:
			f.Modules[m] = ModuleLoadable
		}
	}
}

// memory reads a line of meminfo, in KiB.
func (p prober) memory(field string) int64 {
	for line := range strings.Lines(p.text("proc/meminfo")) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n
		}
	}
	return 0
}

// processes finds programs that matter, and who listens where.
func (p prober) processes(f *hostFacts) {
	sockets := map[string]int{}
	for _, from := range []struct{ protocol, file string }{
		{"tcp", "tcp"}, {"tcp", "tcp6"}, {"udp", "udp"}, {"udp", "udp6"},
	} {
		p.listeners(f, sockets, from.protocol, "proc/net/"+from.file)
	}
	entries, err := os.ReadDir(filepath.Join(string(p), "proc"))
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name := p.line("proc/" + e.Name() + "/comm")
		if slices.Contains(known, name) && f.Processes[name] == 0 {
			f.Processes[name] = pid
		}
		fds, _ := os.ReadDir(filepath.Join(string(p), "proc", e.Name(), "fd"))
		for _, fd := range fds {
			to, _ := os.Readlink(filepath.Join(string(p), "proc", e.Name(), "fd", fd.Name()))
			if i, ok := sockets[to]; ok && f.Listeners[i].PID == 0 {
				f.Listeners[i].PID, f.Listeners[i].Program = pid, name
			}
		}
	}
}

// listeners reads a table of sockets: those of TCP in state LISTEN (0A), and all
// of UDP that are bound.
func (p prober) listeners(f *hostFacts, sockets map[string]int, protocol, file string) {
	sc := bufio.NewScanner(strings.NewReader(p.text(file)))
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		if len(fields) < 10 || protocol == "tcp" && fields[3] != "0A" {
			continue
		}
		_, port, ok := strings.Cut(fields[1], ":")
		n, err := strconv.ParseInt(port, 16, 32)
		if !ok || err != nil {
			continue
		}
		sockets["socket:["+fields[9]+"]"] = len(f.Listeners)
		f.Listeners = append(f.Listeners, listener{Protocol: protocol, Port: int(n)})
	}
}
