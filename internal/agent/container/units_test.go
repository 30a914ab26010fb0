package container

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)", "EMPTY": "", "A-B": "dash"}
	lookup := func(n string) (string, bool) { v, ok := vars[n]; return v, ok }
	for _, c := range [][2]string{
		{"", ""}, {"plain", "plain"}, {"$(A)", "1"}, {"x$(A)y$(A)z", "x1y1z"}, {"$$(A)", "$(A)"}, {"$$$(A)", "$1"},
		{"$(B)", "$(A)"}, {"$(NONE)", "$(NONE)"}, {"$(A", "$(A"}, {"$A", "$A"}, {"$", "$"}, {"$$", "$"}, {"$()", "$()"},
		{"$(EMPTY)", ""}, {"$(A-B)", "dash"}, {"$((A))", "$((A))"}, {"a$(A$(A)", "a$(A$(A)"}, {"$($(A)", "$($(A)"},
	} {
		if got := expandVariables(c[0], lookup); got != c[1] {
			t.Errorf("%q: got %q, want %q", c[0], got, c[1])
		}
	}
	if _, missing := expandStrict("$(A)/$(X)/$(Y)", lookup); missing != "X" {
		t.Errorf("missing %q", missing)
	}
}

// Expansion of escaped text gives the text back, and never panics.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"$(A)", "$$", "a$(", "$)(", "$(A$(B))"} {
		f.Add(s)
	}
	none := func(string) (string, bool) { return "", false }
	f.Fuzz(func(t *testing.T, s string) {
		if got := expandVariables(strings.ReplaceAll(s, "$", "$$"), none); got != s {
			t.Errorf("escaped %q came back as %q", s, got)
		}
		all, _ := expandStrict(s, func(string) (string, bool) { return "v", true })
		if !strings.Contains(s, "$") && all != s {
			t.Errorf("%q became %q", s, all)
		}
	})
}

func TestSysctlAdmission(t *testing.T) {
	pod := func(host string, names ...string) *v1.Pod {
		p := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{}, HostNetwork: host == "net", HostIPC: host == "ipc"}}
		for _, n := range names {
			p.Spec.SecurityContext.Sysctls = append(p.Spec.SecurityContext.Sysctls, v1.Sysctl{Name: n, Value: "1"})
		}
		return p
	}
	node := NodeSettings{Kernel: [2]int{4, 10}, AllowedUnsafeSysctls: []string{"kernel.msg*", "net.core.somaxconn"}}
	for _, c := range []struct {
		pod  *v1.Pod
		want string
	}{
		{pod("", "kernel.shm_rmid_forced", "net.ipv4.tcp_keepalive_time"), ""},
		{pod("", "kernel/shm_rmid_forced"), ""},
		{pod("", "kernel.msgmax"), ""},
		{pod("", "net.core.somaxconn"), ""},
		{pod("", "vm.swappiness"), `forbidden sysctl: "vm.swappiness" not allowlisted`},
		{pod("", "net.ipv4.tcp_rmem"), `forbidden sysctl: "net.ipv4.tcp_rmem" not allowlisted`}, // safe from 4.15
		{pod("net", "net.core.somaxconn"), `forbidden sysctl: "net.core.somaxconn" not allowed with host net enabled`},
		{pod("ipc", "kernel.msgmax"), `forbidden sysctl: "kernel.msgmax" not allowed with host ipc enabled`},
		{&v1.Pod{}, ""},
	} {
		err := CheckSysctls(c.pod, node)
		got := ""
		if err != nil {
			var a *AdmissionError
			if !errors.As(err, &a) || a.Reason != "SysctlForbidden" {
				t.Errorf("%v is not an admission error of its own", err)
			}
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestAppArmorAdmission(t *testing.T) {
	name := "mine"
	local := &v1.Pod{Spec: v1.PodSpec{
		SecurityContext: &v1.PodSecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost,
			LocalhostProfile: &name}},
		Containers: []v1.Container{{Name: "c"}},
	}}
	if err := CheckAppArmor(local, false, nil); err == nil ||
		err.Error() != "Cannot enforce AppArmor: AppArmor is not enabled on the host" {
		t.Errorf("host without it: %v", err)
	}
	if err := CheckAppArmor(local, true, map[string]bool{}); err == nil {
		t.Error("a profile that is not loaded was accepted")
	}
	if err := CheckAppArmor(local, true, map[string]bool{"mine": true}); err != nil {
		t.Error(err)
	}
	// An annotation that came later does not undo what the pod's field says.
	local.Annotations = map[string]string{legacyAppArmor + "c": "unconfined"}
	c := &local.Spec.Containers[0]
	if p, _, err := appArmorProfile(local, c, local.Spec.SecurityContext.AppArmorProfile); err != nil ||
		p.ProfileType != runtimeapi.SecurityProfile_Localhost {
		t.Errorf("annotation against the pod's field: %v, %v", p, err)
	}
	if p, _, err := appArmorProfile(local, c, nil); err != nil || p.ProfileType != runtimeapi.SecurityProfile_Unconfined {
		t.Errorf("annotation alone: %v, %v", p, err)
	}
	bad := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{legacyAppArmor + "c": "odd"}},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	if err := CheckAppArmor(bad, true, nil); err == nil || !strings.Contains(err.Error(), `invalid AppArmor profile name: "odd"`) {
		t.Errorf("odd name: %v", err)
	}
}

func TestOOMScores(t *testing.T) {
	const capacity = 1000 << 20
	res := func(req, limit string) v1.ResourceRequirements {
		r := v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}
		if req != "" {
			r.Requests[v1.ResourceMemory] = mustQuantity(req)
		}
		if limit != "" {
			r.Limits[v1.ResourceMemory] = mustQuantity(limit)
			r.Limits[v1.ResourceCPU] = mustQuantity("1")
			r.Requests[v1.ResourceCPU] = mustQuantity("1")
		}
		return r
	}
	high := int32(2000001000)
	for _, c := range []struct {
		name string
		pod  *v1.Pod
		want int64
	}{
		{"best effort", &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{}}}}, 1000},
		{"guaranteed", &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: res("1Mi", "1Mi")}}}}, -997},
		{"node critical", &v1.Pod{Spec: v1.PodSpec{Priority: &high, PriorityClassName: nodeCritical, Containers: []v1.Container{{}}}},
			-997},
		{"tiny", &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: res("1", "")}}}}, 999},
		{"half", &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: res("500Mi", "")}}}}, 500},
		{"all", &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: res("1000Mi", "")}}}}, 3},
	} {
		if got := oomScoreAdj(c.pod, &c.pod.Spec.Containers[0], capacity); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestEnvFiles(t *testing.T) {
	got, err := parseEnvFile("# comment\nA='one'\n\nB=two\nC='a\nb # not a comment' # one\n")
	if err != nil || got["A"] != "one" || got["B"] != "two" || got["C"] != "a\nb # not a comment" || len(got) != 3 {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"A", "=x", "A B=x", "A='open\nstill", "A='x' y"} {
		if _, err := parseEnvFile(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestFilesAreWrittenInPlace(t *testing.T) {
	dir := t.TempDir()
	in := baseInput()
	in.RootDir = dir
	in.Pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}}
	c := &v1.Container{Name: "c", TerminationMessagePath: "/dev/termination-log"}
	write := func() []file {
		files, err := Files(in, c, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := WriteFiles(files); err != nil {
			t.Fatal(err)
		}
		return files
	}
	files := write()
	before, err := os.Stat(files[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[1].Path, []byte("last words"), 0o666); err != nil {
		t.Fatal(err)
	}
	in.PodIPs = []string{"10.1.0.6"}
	write()
	after, _ := os.Stat(files[0].Path)
	if !os.SameFile(before, after) {
		t.Error("the hosts file was replaced: containers that mount it would not see the change")
	}
	if b, _ := os.ReadFile(files[0].Path); !strings.Contains(string(b), "10.1.0.6\tp\n") {
		t.Errorf("hosts: %s", b)
	}
	if b, _ := os.ReadFile(files[1].Path); string(b) != "last words" {
		t.Error("the termination message was lost")
	}
	if info, _ := os.Stat(files[1].Path); info.Mode().Perm() != 0o666 {
		t.Errorf("termination message mode %v", info.Mode())
	}
	if files[1].Path != terminationFile(Input{RootDir: dir, Pod: in.Pod}, c, 2) || filepath.Dir(files[1].Path) != filepath.Join(dir,
		"pods/u/containers/c") {
		t.Errorf("termination message at %s", files[1].Path)
	}
}

func mustQuantity(s string) apiresource.Quantity { return apiresource.MustParse(s) }

func BenchmarkContainerConfig(b *testing.B) {
	in := baseInput()
	in.Pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ContainerConfig(in, &in.Pod.Spec.Containers[0], 0); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCapabilitiesMustBeAskedFor: on a hardened node.
func TestCapabilitiesMustBeAskedFor(t *testing.T) {
	privileged := true
	for _, test := range []struct {
		name string
		own  *v1.SecurityContext
		want string
	}{
		{"nothing said", nil, "AUDIT_WRITE MKNOD NET_RAW SETFCAP SYS_CHROOT"},
		{"one asked for", &v1.SecurityContext{Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_RAW"}}},
			"AUDIT_WRITE MKNOD SETFCAP SYS_CHROOT"},
		{"with its prefix", &v1.SecurityContext{Capabilities: &v1.Capabilities{Add: []v1.Capability{"cap_net_raw"}}},
			"AUDIT_WRITE MKNOD SETFCAP SYS_CHROOT"},
		{"all asked for", &v1.SecurityContext{Capabilities: &v1.Capabilities{Add: []v1.Capability{"ALL"}}}, ""},
		{"all dropped", &v1.SecurityContext{Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}}}, "ALL"},
		{"privileged", &v1.SecurityContext{Privileged: &privileged}, ""},
	} {
		in := baseInput()
		in.Node.DropCapabilities = RuntimeExtras
		c := &v1.Container{Name: "c", SecurityContext: test.own}
		in.Pod = &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{*c}}}
		out, err := containerSecurity(in, c)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(out.Capabilities.GetDropCapabilities(), " "); got != test.want {
			t.Errorf("%s: drops %q, want %q", test.name, got, test.want)
		}
	}
}

// FuzzEnvFile takes in any file that a pod left for its variables.
func FuzzEnvFile(f *testing.F) {
	f.Add("A='one'\nB=two # x\n")
	f.Fuzz(func(t *testing.T, text string) {
		vars, err := parseEnvFile(text)
		if err != nil {
			return
		}
		for name := range vars {
			if name == "" || strings.ContainsAny(name, "=\n") {
				t.Errorf("a variable %q", name)
			}
		}
	})
}
