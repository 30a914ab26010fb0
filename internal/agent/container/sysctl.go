package container

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// safeSysctls are namespaced, isolated between pods and cannot hurt the node;
// the value is the kernel from which that holds.
var safeSysctls = map[string][2]int{
	"kernel.shm_rmid_forced":              {},
	"net.ipv4.ip_local_port_range":        {},
	"net.ipv4.tcp_syncookies":             {},
	"net.ipv4.ping_group_range":           {},
	"net.ipv4.ip_unprivileged_port_start": {},
	"net.ipv4.ip_local_reserved_ports":    {3, 16},
	"net.ipv4.tcp_keepalive_time":         {4, 5},
	"net.ipv4.tcp_fin_timeout":            {4, 6},
	"net.ipv4.tcp_keepalive_intvl":        {4, 5},
	"net.ipv4.tcp_keepalive_probes":       {4, 5},
	"net.ipv4.tcp_rmem":                   {4, 15},
	"net.ipv4.tcp_wmem":                   {4, 15},
}

// sysctlName converts "net/ipv4/conf/eth0.1/x" to dots. A name whose first
// separator is a dot is in that form already.
func sysctlName(name string) string {
	i := strings.IndexAny(name, "./")
	if i < 0 || name[i] == '.' {
		return name
	}
	return strings.NewReplacer("/", ".", ".", "/").Replace(name)
}

// namespaceOf is the namespace a sysctl lives in: "net", "ipc" or "".
func namespaceOf(name string) string {
	switch {
	case strings.HasPrefix(name, "net."):
		return "net"
	case strings.HasPrefix(name, "kernel.shm"), strings.HasPrefix(name, "kernel.msg"),
		name == "kernel.sem", strings.HasPrefix(name, "fs.mqueue."):
		return "ipc"
	}
	return ""
}

// CheckSysctls rejects pods that set sysctls this node does not allow.
func CheckSysctls(pod *v1.Pod, node NodeSettings) error {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := sysctlName(s.Name)
		if !sysctlAllowed(name, node) {
			return &AdmissionError{"SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowlisted", s.Name)}
		}
		ns := namespaceOf(name)
		if ns == "net" && pod.Spec.HostNetwork || ns == "ipc" && pod.Spec.HostIPC {
			return &AdmissionError{"SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowed with host %s enabled", s.Name, ns)}
		}
	}
	return nil
}

func sysctlAllowed(name string, node NodeSettings) bool {
	if since, ok := safeSysctls[name]; ok && !olderThan(node.Kernel, since) {
		return true
	}
	for _, pattern := range node.AllowedUnsafeSysctls {
		pattern = sysctlName(pattern)
		if prefix, wild := strings.CutSuffix(pattern, "*"); wild && strings.HasPrefix(name, prefix) || name == pattern {
			return true
		}
	}
	return false
}

func olderThan(kernel, since [2]int) bool {
	return kernel[0] < since[0] || kernel[0] == since[0] && kernel[1] < since[1]
}

func sysctls(pod *v1.Pod) map[string]string {
	if pod.Spec.SecurityContext == nil || len(pod.Spec.SecurityContext.Sysctls) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		out[sysctlName(s.Name)] = s.Value
	}
	return out
}
