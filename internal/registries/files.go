package registries

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// signature is the first line of every file of ours: only those are replaced and removed.
const signature = "# Written by berth from registries.yaml at each start; changes are lost."

// dockerHub is docker.io's host, which no image names.
const dockerHub = "registry-1.docker.io"

// Hosts are the hosts.toml of containerd's hosts directory, by the name of
// their folder. They hold no secrets.
func (c *Config) Hosts() map[string]string {
	hosts := map[string]bool{}
	for h := range c.Mirrors {
		hosts[h] = true
	}
	for h, a := range c.Configs {
		// A host without a folder has that of all hosts, so that one with TLS
		// settings alone needs a folder too.
		if a != nil && a.TLS != nil {
			hosts[canonical(h)] = true
		}
	}
	out := map[string]string{}
	for h := range hosts {
		folder := h
		if h == everyHost {
			folder = "_default"
		}
		out[folder] = c.hosts(h)
	}
	return out
}

func canonical(host string) string {
	if host == dockerHub {
		return "docker.io"
	}
	return host
}

func (c *Config) hosts(host string) string {
	var b strings.Builder
	b.WriteString(signature + "\n")
	// Without a server containerd knows the host itself: the hub's, and http
	// where a local registry speaks it. It does not verify a local one unless
	// it is named.
	names := []string{host}
	if host == "docker.io" {
		names = append(names, dockerHub)
	}
	t := c.tlsOf(names...)
	if host != everyHost && t != nil {
		fmt.Fprintf(&b, "server = %s\n", quote("https://"+names[len(names)-1]))
	}
	t.write(&b, "")
	m := c.Mirrors[host]
	if m == nil {
		m = c.Mirrors[everyHost]
	}
	if m == nil {
		return b.String()
	}
	prefix, _ := m.prefix()
	seen := map[string]bool{}
	for _, e := range m.Endpoint {
		u, err := endpointURL(e)
		if err != nil {
			continue // Parse refused it
		}
		address, override := address(u, prefix)
		if seen[address] {
			continue
		}
		seen[address] = true
		fmt.Fprintf(&b, "\n[host.%s]\n  capabilities = [\"pull\", \"resolve\"]\n", quote(address))
		if override {
			b.WriteString("  override_path = true\n")
		}
		c.tlsOf(u.Host, u.Host).write(&b, "  ")
	}
	return b.String()
}

// address is an endpoint as containerd wants it, and whether its path is all of
// the path. As with k3s a path of an endpoint is taken as it is.
func address(u *url.URL, prefix string) (text string, override bool) {
	path := strings.TrimRight(u.Path, "/")
	override = path != "" && !strings.HasSuffix(path, "/v2")
	if prefix != "" {
		if path == "" {
			path = "/v2"
		}
		path, override = path+"/"+prefix, true
	}
	return u.Scheme + "://" + u.Host + path, override
}

// tlsOf is how a host is reached: by one of its names, or as all are.
func (c *Config) tlsOf(names ...string) *tlsFiles {
	for _, n := range append(names, everyHost) {
		if a := c.Configs[n]; a != nil && a.TLS != nil {
			return a.TLS
		}
	}
	return nil
}

func (t *tlsFiles) write(b *strings.Builder, indent string) {
	if t == nil {
		return
	}
	if t.CAFile != "" {
		fmt.Fprintf(b, "%sca = [%s]\n", indent, quote(t.CAFile))
	}
	if t.CertFile != "" {
		fmt.Fprintf(b, "%sclient = [[%s, %s]]\n", indent, quote(t.CertFile), quote(t.KeyFile))
	}
	if t.InsecureSkipVerify {
		fmt.Fprintf(b, "%sskip_verify = true\n", indent)
	}
}

// Credentials is the part of containerd's configuration that holds the
// credentials; empty without any. It is secret.
func (c *Config) Credentials() string {
	var b strings.Builder
	for _, host := range slices.Sorted(maps.Keys(c.Configs)) {
		a := c.Configs[host]
		if a == nil || a.Auth == nil {
			continue
		}
		if host == "docker.io" {
			host = dockerHub
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "[plugins.'io.containerd.cri.v1.images'.registry.configs.%s.auth]\n", quote(host))
		token := a.Auth.IdentityToken
		if token == "" {
			token = a.Auth.Token
		}
		for _, f := range []struct{ name, value string }{
			{"username", a.Auth.Username}, {"password", a.Auth.Password}, {"auth", a.Auth.Auth}, {"identitytoken", token},
		} {
			if f.value != "" {
				fmt.Fprintf(&b, "  %s = %s\n", f.name, quote(f.value))
			}
		}
	}
	return b.String()
}

// quote writes a basic string of TOML.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			b.WriteString(`\u` + fmt.Sprintf("%04x", r))
		default:
			b.WriteString(strings.ToValidUTF8(string(r), strconv.QuoteRune('?')))
		}
	}
	b.WriteByte('"')
	return b.String()
}
