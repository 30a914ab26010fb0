package hostcheck

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Judge makes findings of facts, the failures first. Nothing but Failures and
// what surely leads to one is a failure.
func Judge(f hostFacts, w Want) []Finding {
	j := judgement{f: f, w: w}
	j.system()
	for _, failure := range f.Failures {
		j.add(Fail, failure.Name, failure.Message+j.holder(failure), j.failureRemedy(failure))
	}
	if w.node() {
		j.node()
	}
	j.general()
	rank := map[level]int{Fail: 0, Warn: 1, OK: 2}
	slices.SortStableFunc(j.out, func(a, b Finding) int { return rank[a.Level] - rank[b.Level] })
	return j.out
}

type judgement struct {
	f   hostFacts
	w   Want
	out []Finding
}

func (j *judgement) add(l level, name, message, remedy string) {
	j.out = append(j.out, Finding{Level: l, Name: name, Message: message, Remedy: remedy})
}

func (j *judgement) system() {
	name := j.f.Name
	if name == "" {
		name = "unknown distribution"
	}
	if j.f.Distribution == "" {
		j.add(Warn, "system", name+", Linux "+j.f.Kernel+": commands are known for "+strings.Join(distributions, ", ")+" only",
			"use the package manager of this host")
		return
	}
	j.add(OK, "system", name+", Linux "+j.f.Kernel, "")
}

// node is what containers need.
func (j *judgement) node() {
	j.cgroups()
	j.modules()
	j.capabilities()
	if missing := without(namespaces, j.f.Namespaces); len(missing) > 0 {
		j.add(Fail, "namespaces", "the kernel has no namespaces of kind "+strings.Join(missing, ", "),
			"start a kernel with CONFIG_NAMESPACES and those kinds")
	} else {
		j.add(OK, "namespaces", strings.Join(j.f.Namespaces, " "), "")
	}
	if !j.w.ForeignRuntime {
		if j.f.Tools["crun"] == "" && j.f.Tools["runc"] == "" {
			j.add(Fail, "oci-runtime", "neither crun nor runc is installed", j.install("runc"))
		} else {
			j.add(OK, "oci-runtime", strings.TrimSpace(j.f.Tools["crun"]+" "+j.f.Tools["runc"]), "")
		}
	}
	j.sysctls()
	j.others()
	if j.f.SwapKiB > 0 {
		j.add(Warn, "swap", fmt.Sprintf("%d MiB of swap are on: pods do not use it unless memorySwap of --agent-config says so, other "+
			"programs do, and the eviction signals do not see it", j.f.SwapKiB>>10), "swapoff -a, and remove its lines from /etc/fstab")
	} else {
		j.add(OK, "swap", "off", "")
	}
}

func (j *judgement) cgroups() {
	remedy := "enable the controllers in the kernel's command line or delegate them to this host"
	v2 := "start the kernel with systemd.unified_cgroup_hierarchy=1: "
	switch j.f.Distribution {
	case "alpine":
		remedy = `sed -i 's/^#\?rc_cgroup_mode=.*/rc_cgroup_mode="unified"/' /etc/rc.conf && rc-update add cgroups sysinit && rc-service ` +
			`cgroups start`
		v2 = remedy
	case "fedora":
		v2 += "grubby --update-kernel=ALL --args=systemd.unified_cgroup_hierarchy=1 && reboot"
	default:
		v2 += "add it to GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub && reboot"
	}
	failed := slices.ContainsFunc(j.f.Failures, func(f Failure) bool { return f.Name == "cgroups" })
	switch missing := j.f.Host.Missing(); {
	case failed: // already told
	case j.f.HostError != "":
		j.add(Fail, "cgroups", j.f.HostError, "mount /proc and /sys")
	case len(missing) > 0:
		j.add(Fail, "cgroups", fmt.Sprintf("controllers %s are missing (%s layout)", strings.Join(missing, ", "), j.f.Host.Cgroups), remedy)
	case j.f.Host.Cgroups != "v2":
		j.add(Warn, "cgroups", fmt.Sprintf("controllers are on v1 hierarchies (%s): memory of tmpfs volumes and swap follow v1 rules",
			j.f.Host.Cgroups), v2)
	default:
		j.add(OK, "cgroups", "v2, controllers "+strings.Join(j.f.Host.Controllers, " "), "")
	}
}

// features are what kernel modules are for, in order. The lists of modules can
// lack one that is there under another name, so its absence is no failure: the
// start tries what it needs.
var features = []struct {
	module string
	lost   string // without it
}{
	{"nf_tables", "Services and policies are nftables rules"},
	{"nf_conntrack", "Services need connection tracking"},
	{"bridge", "pods of this node are on a bridge (--network=none does without)"},
	{"veth", "pods are connected by veth pairs (--network=none does without)"},
	{"br_netfilter", "policies do not hold between pods on one bridge"},
	{"overlay", "images are copied for every container"},
	{"vxlan", "nodes must be in one layer-2 network"},
}

func (j *judgement) modules() {
	var good []string
	for _, feature := range features {
		switch {
		case feature.module == "nf_tables" && slices.ContainsFunc(j.f.Failures, func(f Failure) bool { return f.Name == "nftables" }):
		case j.f.Modules[feature.module] == ModulePresent:
			good = append(good, feature.module)
		case j.f.Modules[feature.module] == ModuleLoadable && j.f.Tools["modprobe"] != "":
			good = append(good, feature.module) // the kernel or berth loads it when it is used
		case j.f.Modules[feature.module] == ModuleLoadable:
			j.add(Warn, "kernel", "module "+feature.module+" is not loaded and there is no modprobe: "+feature.lost, j.install("kmod"))
		case !j.f.ModulesListed: // the start tries it
		default:
			j.add(Warn, "kernel", "no module "+feature.module+" is found for Linux "+j.f.Kernel+": "+feature.lost, j.module(feature.module))
		}
	}
	if len(good) > 0 {
		j.add(OK, "kernel", strings.Join(good, " "), "")
	}
}

// module is how a kernel with a module is had.
func (j *judgement) module(name string) string {
	switch j.f.Distribution {
	case "ubuntu":
		return "apt-get install -y linux-modules-extra-" + j.f.Kernel + " && modprobe " + name
	case "debian":
		return "apt-get install -y linux-image-amd64 && reboot (a cloud kernel lacks modules)"
	case "fedora":
		return "dnf install -y kernel-modules-" + j.f.Kernel + " && modprobe " + name
	case "alpine":
		return "apk add linux-lts && reboot, then modprobe " + name + " && echo " + name + " >> /etc/modules"
	}
	return "install the kernel's modules, then modprobe " + name
}

// needed capabilities, by bit, and whether a start fails without them.
var capabilities = []struct {
	bit   uint
	name  string
	level level
	lost  string
}{
	{12, "CAP_NET_ADMIN", Fail, "no network can be made for pods"},
	{21, "CAP_SYS_ADMIN", Fail, "no container can be started"},
	{24, "CAP_SYS_RESOURCE", Warn, "OOM scores below the runtime's own are not applied"},
	{19, "CAP_SYS_PTRACE", Warn, "the files of containers cannot be looked at"},
	{16, "CAP_SYS_MODULE", Warn, "kernel modules must be loaded beforehand"},
}

func (j *judgement) capabilities() {
	good := true
	for _, c := range capabilities {
		if j.f.Capabilities&(1<<c.bit) == 0 {
			good = false
			j.add(c.level, "capabilities", c.name+" is missing: "+c.lost,
				"run it as root; in a container, give it that capability (docker run --privileged)")
		}
	}
	if good {
		j.add(OK, "capabilities", "all", "")
	}
}

// minimums are of sysctls below which a node with many pods is in trouble.
var minimums = []struct {
	name string
	low  int64 // below this a warning
	want int64
	why  string
}{
	{"fs.inotify.max_user_instances", 512, 8192, "each container whose log is followed takes one"},
	{"fs.inotify.max_user_watches", 65536, 524288, "programs in pods that watch files share them"},
	{"kernel.pid_max", 32768, 4194304, "all pods share them"},
	{"user.max_user_namespaces", 1, 28633, "pods with hostUsers: false take one each"},
}

func (j *judgement) sysctls() {
	good := true
	for _, m := range minimums {
		n, err := strconv.ParseInt(j.f.Sysctls[m.name], 10, 64)
		if err != nil || n >= m.low {
			continue
		}
		good = false
		j.add(Warn, "sysctl", fmt.Sprintf("%s is %d: %s", m.name, n, m.why),
			fmt.Sprintf("echo %s=%d >> /etc/sysctl.d/90-berth.conf && sysctl -p /etc/sysctl.d/90-berth.conf", m.name, m.want))
	}
	if good {
		j.add(OK, "sysctl", "inotify and pid limits suffice", "")
	}
}

// others are programs that manage the same things.
func (j *judgement) others() {
	for _, o := range []struct{ name, trouble, unit string }{
		{"kubelet", "two agents would manage the pods and cgroups of one host", "kubelet"},
		{"k3s", "it runs an agent and a proxy of its own", "k3s"},
		{"k0s", "it runs an agent and a proxy of its own", "k0scontroller"},
		{"microk8s", "it runs an agent and a proxy of its own", "snap.microk8s.daemon-kubelite"},
	} {
		if pid := j.f.Processes[o.name]; pid != 0 {
			j.add(Warn, "conflict", fmt.Sprintf("%s is running (process %d): %s", o.name, pid, o.trouble), j.stop(o.unit))
		}
	}
	if pid := j.f.Processes["firewalld"]; pid != 0 {
		j.add(Warn, "conflict", fmt.Sprintf("firewalld is running (process %d): its rules drop packets of pods and of other nodes", pid),
			"systemctl disable --now firewalld; or firewall-cmd --permanent --zone=trusted --add-source=10.244.0.0/16 "+
				"--add-source=10.96.0.0/16 && firewall-cmd --permanent --add-port=6443/tcp --add-port=10250/tcp && firewall-cmd --reload")
	}
	for _, name := range []string{"containerd", "dockerd", "crio"} {
		if pid := j.f.Processes[name]; pid != 0 {
			j.add(OK, "runtime", fmt.Sprintf("%s runs beside (process %d): berth's own containerd uses other sockets and directories", name,
				pid), "")
		}
	}
}

// general is what any role needs.
func (j *judgement) general() {
	j.hostname()
	if mib := j.f.MemoryKiB >> 10; mib < 900 && j.w.Command != "agent" {
		j.add(Warn, "memory", fmt.Sprintf("%d MiB: a control plane and a few pods want 1 GiB", mib), "give the host more memory")
	} else {
		j.add(OK, "memory", fmt.Sprintf("%d MiB", mib), "")
	}
	clocks := []string{"chronyd", "ntpd", "ntpd-rs", "openntpd", "systemd-timesyn"}
	switch i := slices.IndexFunc(clocks, func(c string) bool { return j.f.Processes[c] != 0 }); {
	case j.f.ClockSynced != nil && *j.f.ClockSynced:
		j.add(OK, "time", "the clock is synchronised", "")
	case i >= 0:
		j.add(OK, "time", "kept by "+clocks[i], "")
	default:
		remedy := map[string]string{
			"debian": "apt-get install -y systemd-timesyncd", "ubuntu": "apt-get install -y systemd-timesyncd",
			"fedora": "dnf install -y chrony && systemctl enable --now chronyd",
			"alpine": "apk add chrony && rc-update add chronyd default && rc-service chronyd start"}[j.f.Distribution]
		if remedy == "" {
			remedy = "run a time service such as chrony"
		}
		j.add(Warn, "time", "nothing is seen to keep the clock right: certificates and leases depend on it", remedy)
	}
	if j.f.Init == "" {
		j.add(Warn, "service", "neither systemd nor OpenRC runs here: `berth install` cannot make a service",
			"start it with `berth up --detach` from what starts programs here")
	} else {
		j.add(OK, "service", j.f.Init, "")
	}
}

// subdomain is what a Node may be called (RFC 1123).
var subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func (j *judgement) hostname() {
	name, from := j.w.NodeName, "--node-name"
	if name == "" {
		name, from = strings.ToLower(j.f.Hostname), "the host name"
	}
	switch {
	case !subdomain.MatchString(name) || len(name) > 253:
		j.add(Fail, "hostname", fmt.Sprintf("%s %q cannot be a Node's name: allowed are lower-case letters, digits, dashes and dots", from,
			name),
			j.rename())
	case name == "localhost" || strings.HasPrefix(name, "localhost."):
		j.add(Warn, "hostname", "the host is called "+name+": nodes of one cluster need different names",
			j.rename())
	default:
		j.add(OK, "hostname", name, "")
	}
}

func (j *judgement) rename() string {
	if j.f.Init == "openrc" {
		return "setup-hostname NAME && rc-service hostname restart, or give --node-name"
	}
	return "hostnamectl set-hostname NAME, or give --node-name"
}

// holder names the program that holds the port of a failure.
func (j *judgement) holder(failure Failure) string {
	text, ok := strings.CutPrefix(failure.Name, "port ")
	port, err := strconv.Atoi(text)
	if !ok || err != nil {
		return ""
	}
	for _, l := range j.f.Listeners {
		if l.Port == port && l.PID != 0 {
			return fmt.Sprintf("; %s holds it (process %d)", l.Program, l.PID)
		}
	}
	return ""
}

// failureRemedy is the command for what a start failed by; empty where the
// message says it.
func (j *judgement) failureRemedy(failure Failure) string {
	switch {
	case failure.Name == "nftables" && j.f.Modules["nf_tables"] == ModuleLoadable:
		return "modprobe nf_tables" + j.persist("nf_tables")
	case failure.Name == "nftables":
		return j.module("nf_tables")
	case failure.Name == "cgroups" && j.f.Distribution == "alpine":
		return "rc-update add cgroups sysinit && rc-service cgroups start"
	}
	return ""
}

// persist loads a module at every start of the host.
func (j *judgement) persist(module string) string {
	if j.f.Distribution == "alpine" {
		return " && echo " + module + " >> /etc/modules"
	}
	return " && echo " + module + " >> /etc/modules-load.d/berth.conf"
}

// distributions are those whose commands are known.
var distributions = []string{"debian", "ubuntu", "fedora", "alpine"}

func (j *judgement) install(pkg string) string {
	switch j.f.Distribution {
	case "debian", "ubuntu":
		return "apt-get update && apt-get install -y " + pkg
	case "fedora":
		return "dnf install -y " + pkg
	case "alpine":
		return "apk add " + pkg
	}
	return "install the package " + pkg
}

func (j *judgement) stop(unit string) string {
	if j.f.Init == "openrc" {
		return "rc-service " + unit + " stop && rc-update del " + unit
	}
	return "systemctl disable --now " + unit
}

func without(all, these []string) (out []string) {
	for _, a := range all {
		if !slices.Contains(these, a) {
			out = append(out, a)
		}
	}
	return out
}
