// Package network composes what a pod sees of its network: resolver
// configuration, hosts file, host name, and the CNI configuration that gives
// it an address. All of it is pure except WriteCNI.
package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Limits of the resolver that berth composes for; what exceeds them is cut
// with a warning.
const (
	MaxNameservers  = 3
	MaxSearches     = 32
	MaxSearchLength = 2048
	maxOptionLength = 256
)

// Resolver is the content of a resolv.conf.
type Resolver struct {
	Servers  []string
	Searches []string
	Options  []string
}

// ParseResolvConf reads the lines that matter of a resolv.conf. The last
// search line wins, as in the C library. Never fails: unknown lines and bad
// addresses are skipped, because a node's file with one odd line must still
// give pods a resolver.
func ParseResolvConf(text string) Resolver {
	var r Resolver
	for _, line := range strings.Split(text, "\n") {
		// A comment may follow a value after a space.
		if i := strings.IndexAny(line, "#;"); i == 0 || i > 0 && (line[i-1] == ' ' || line[i-1] == '\t') {
			line = line[:i]
		}
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if len(fields) > 1 {
				if _, err := netip.ParseAddr(fields[1]); err == nil {
					r.Servers = append(r.Servers, fields[1])
				}
			}
		case "search":
			r.Searches = nil
			for _, s := range fields[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				r.Searches = append(r.Searches, s)
			}
		case "options":
			for _, o := range fields[1:] {
				if len(o) <= maxOptionLength {
					r.Options = append(r.Options, o)
				}
			}
		}
	}
	return r
}

// CheckLimits says what of the node's resolver configuration cannot reach pods:
// domains that the cluster's own leave no room for, in the words of a node's
// event. path is the file it came from.
func CheckLimits(path string, r Resolver, clusterDomain string) (out []string) {
	room := MaxSearches
	if clusterDomain != "" {
		room -= 3
	}
	if len(r.Searches) > room {
		out = append(out, fmt.Sprintf("Resolv.conf file '%s' contains search line consisting of more than %d domains!", path, room))
	}
	if len(strings.Join(r.Searches, " ")) > MaxSearchLength {
		out = append(out, fmt.Sprintf("Resolv.conf file '%s' contains search line which length is more than allowed %d chars!", path,
			MaxSearchLength))
	}
	return out
}

// DNSInput is what decides a pod's resolver.
type DNSInput struct {
	Pod *v1.Pod
	// ClusterDNS are the addresses of the cluster's resolver.
	ClusterDNS    []string
	ClusterDomain string
	// Host is the node's resolver configuration. NoHost says that the node is
	// configured with an empty path: pods that take the node's resolver then
	// get a loopback server and an empty search list.
	Host   Resolver
	NoHost bool
	// HostIP is the node's primary address; its family picks the loopback.
	HostIP string
}

// Warning is an event for the user, found while composing.
type Warning struct {
	Reason, Message string
}

// ComposeDNS decides the resolver of a pod. The error names a policy that is
// none of the API's.
func ComposeDNS(in DNSInput) (Resolver, []Warning, error) {
	pod := in.Pod
	policy := pod.Spec.DNSPolicy
	switch {
	case policy == v1.DNSClusterFirstWithHostNet:
		policy = v1.DNSClusterFirst
	case policy == "" || policy == v1.DNSClusterFirst:
		policy = v1.DNSClusterFirst
		if pod.Spec.HostNetwork {
			policy = v1.DNSDefault
		}
	}
	var warnings []Warning
	var out Resolver
	if policy == v1.DNSClusterFirst && len(in.ClusterDNS) == 0 {
		warnings = append(warnings, Warning{"MissingClusterDNS", fmt.Sprintf(
			"pod: %q. kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
			pod.Namespace+"/"+pod.Name, pod.Spec.DNSPolicy, v1.DNSDefault)})
		policy = v1.DNSDefault
	}
	switch policy {
	case v1.DNSNone:
	case v1.DNSClusterFirst:
		out.Servers = slices.Clone(in.ClusterDNS)
		out.Searches = unique(append(clusterSearches(pod.Namespace, in.ClusterDomain), in.Host.Searches...))
		out.Options = []string{"ndots:5"}
	case v1.DNSDefault:
		out = hostResolver(in)
	default:
		return out, nil, fmt.Errorf("dnsPolicy %q: allowed are %s, %s, %s and %s", pod.Spec.DNSPolicy,
			v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet, v1.DNSDefault, v1.DNSNone)
	}
	if c := pod.Spec.DNSConfig; c != nil {
		out.Servers = unique(append(out.Servers, c.Nameservers...))
		out.Searches = unique(append(out.Searches, c.Searches...))
		out.Options = mergeOptions(out.Options, c.Options)
	}
	out, cut := limit(out)
	return out, append(warnings, cut...), nil
}

func clusterSearches(namespace, domain string) []string {
	if domain == "" {
		return nil
	}
	return []string{namespace + ".svc." + domain, "svc." + domain, domain}
}

func hostResolver(in DNSInput) Resolver {
	if in.NoHost {
		server := "127.0.0.1"
		if a, err := netip.ParseAddr(in.HostIP); err == nil && a.Is6() {
			server = "::1"
		}
		return Resolver{Servers: []string{server}, Searches: []string{"."}}
	}
	return Resolver{
		Servers:  slices.Clone(in.Host.Servers),
		Searches: slices.Clone(in.Host.Searches),
		Options:  slices.Clone(in.Host.Options),
	}
}

// mergeOptions lets the pod's options replace those of the same name, keeping
// the order in which names first appeared so that results are stable.
func mergeOptions(base []string, pod []v1.PodDNSConfigOption) []string {
	var order []string
	values := map[string]string{}
	set := func(name, spelled string) {
		if _, ok := values[name]; !ok {
			order = append(order, name)
		}
		values[name] = spelled
	}
	for _, o := range base {
		name, _, _ := strings.Cut(o, ":")
		set(name, o)
	}
	for _, o := range pod {
		if o.Name == "" {
			continue
		}
		spelled := o.Name
		if o.Value != nil && *o.Value != "" {
			spelled += ":" + *o.Value
		}
		set(o.Name, spelled)
	}
	out := make([]string, 0, len(order))
	for _, name := range order {
		out = append(out, values[name])
	}
	return out
}

func limit(r Resolver) (Resolver, []Warning) {
	var warnings []Warning
	if len(r.Servers) > MaxNameservers {
		r.Servers = r.Servers[:MaxNameservers]
		warnings = append(warnings, Warning{"DNSConfigForming",
			"Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " +
				strings.Join(r.Servers, " ")})
	}
	kept, length := 0, 0
	for _, s := range r.Searches {
		// One space joins neighbours.
		add := len(s)
		if kept > 0 {
			add++
		}
		if kept == MaxSearches || length+add > MaxSearchLength {
			break
		}
		kept++
		length += add
	}
	if kept < len(r.Searches) {
		r.Searches = r.Searches[:kept]
		warnings = append(warnings, Warning{"DNSConfigForming",
			"Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " + strings.Join(r.Searches,
				" ")})
	}
	return r, warnings
}

func unique(list []string) []string {
	seen := make(map[string]bool, len(list))
	out := make([]string, 0, len(list))
	for _, s := range list {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}
