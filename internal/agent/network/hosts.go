package network

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

const maxHostname = 63

// maxFQDN is the kernel's limit on a host name.
const maxFQDN = 64

// Hostname is the host name that a pod sees and the domain part that goes with
// it in the hosts file (empty without a subdomain). fqdn is what the sandbox's
// own host name must be. An error means that the sandbox cannot be made.
func Hostname(pod *v1.Pod, clusterDomain string) (host, domain, fqdn string, err error) {
	if pod.Spec.HostnameOverride != nil && *pod.Spec.HostnameOverride != "" && !pod.Spec.HostNetwork {
		name := *pod.Spec.HostnameOverride
		if len(name) > maxFQDN {
			return "", "", "", fmt.Errorf("hostnameOverride %q has %d characters: the kernel allows %d", name, len(name), maxFQDN)
		}
		return name, "", name, nil
	}
	host = pod.Spec.Hostname
	if host == "" {
		host = pod.Name
	}
	if len(host) > maxHostname {
		host = host[:maxHostname]
	}
	host = strings.TrimRight(host, "-.")
	if pod.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, clusterDomain)
	}
	fqdn = host
	if set := pod.Spec.SetHostnameAsFQDN; set != nil && *set && domain != "" {
		fqdn = host + "." + domain
		if len(fqdn) > maxFQDN {
			return "", "", "",
				fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max,"+
					" %d characters requested)", fqdn, maxFQDN, len(fqdn))
		}
	}
	return host, domain, fqdn, nil
}

// HostsFile is the content of /etc/hosts of a pod with its own network.
func HostsFile(ips []string, host, domain string, aliases []v1.HostAlias) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		if domain != "" {
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, domain, host)
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", ip, host)
		}
	}
	writeAliases(&b, aliases)
	return b.String()
}

// HostNetworkHosts is the content of /etc/hosts of a pod on the node's
// network: the node's own file and the pod's aliases.
func HostNetworkHosts(node string, aliases []v1.HostAlias) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file (host network).\n")
	b.WriteString(node)
	writeAliases(&b, aliases)
	return b.String()
}

func writeAliases(b *strings.Builder, aliases []v1.HostAlias) {
	if len(aliases) == 0 {
		return
	}
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range aliases {
		b.WriteString(a.IP + "\t" + strings.Join(a.Hostnames, "\t") + "\n")
	}
}
