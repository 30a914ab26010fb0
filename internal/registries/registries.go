// Package registries turns a registries.yaml (in k3s' format) into what
// containerd reads: a hosts directory, and the credentials of its image
// service. It decides what the files hold; Write puts them on the disk.
package registries

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Config is a registries.yaml.
type Config struct {
	// Mirrors are asked before a registry itself, by the registry's host; "*"
	// is for all registries that have none.
	Mirrors map[string]*mirror `yaml:"mirrors"`
	// Configs are how hosts are reached, mirrors among them.
	Configs map[string]*access `yaml:"configs"`
}

type mirror struct {
	// Endpoint are URLs, in the order to ask them.
	Endpoint []string `yaml:"endpoint"`
	// Rewrite changes the repository's name for the endpoints: regular
	// expression to replacement.
	Rewrite map[string]string `yaml:"rewrite"`
}

type access struct {
	Auth *credentials `yaml:"auth"`
	TLS  *tlsFiles    `yaml:"tls"`
}

// credentials are a user and password, the two in base64 ("auth", as docker
// writes it), or an identity token.
type credentials struct {
	Username      string `yaml:"username"`
	Password      string `yaml:"password"`
	Auth          string `yaml:"auth"`
	IdentityToken string `yaml:"identity_token"`
	Token         string `yaml:"token"` // another name of the same
}

type tlsFiles struct {
	CAFile             string `yaml:"ca_file"`
	CertFile           string `yaml:"cert_file"`
	KeyFile            string `yaml:"key_file"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
}

// everyHost stands for all hosts that are not named.
const everyHost = "*"

// Parse reads a registries.yaml. file is for errors, which name line and field
// and never a value: passwords are among them.
func Parse(text []byte, file string) (*Config, error) {
	var c Config
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %s", file, withoutValues(err))
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("%s: %s", file, withoutValues(err))
	}
	p := checker{file: file, root: &root}
	return &c, p.check(&c)
}

var (
	quotedValue = regexp.MustCompile("(?s) `.*?`")
	goType      = regexp.MustCompile(`in type registries\.(\w+)`)
	intoType    = regexp.MustCompile(`into \S*registries\.(\w+)`)
)

// fieldsOf are what is allowed where, by Go type.
var fieldsOf = map[string]string{
	"Config": "mirrors, configs", "mirror": "endpoint, rewrite", "access": "auth, tls",
	"credentials": "username, password, auth, identity_token, token", "tlsFiles": "ca_file, cert_file, key_file, insecure_skip_verify",
}

// withoutValues makes an error of the decoder readable, and takes the values out of it.
func withoutValues(err error) string {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "yaml: unmarshal errors:\n  ", ""), "yaml: ")
	text = quotedValue.ReplaceAllString(text, "")
	text = goType.ReplaceAllStringFunc(text, func(m string) string {
		return "here: allowed are " + fieldsOf[goType.FindStringSubmatch(m)[1]]
	})
	text = intoType.ReplaceAllStringFunc(text, func(m string) string {
		return "where fields are wanted: " + fieldsOf[intoType.FindStringSubmatch(m)[1]]
	})
	return strings.ReplaceAll(text, "\n  ", "; ")
}

// checker looks at values, and finds their lines.
type checker struct {
	file string
	root *yaml.Node
	errs []error
}

// fail notes an error of a field.
func (p *checker) fail(message string, path ...string) {
	line := 0
	for at, keys := p.root, append([]string{""}, path...); len(keys) > 0; keys = keys[1:] {
		var next *yaml.Node
		switch {
		case at.Kind == yaml.DocumentNode:
			next = at.Content[0]
		case at.Kind == yaml.MappingNode:
			for i := 0; i+1 < len(at.Content); i += 2 {
				if at.Content[i].Value == keys[0] {
					line, next = at.Content[i].Line, at.Content[i+1]
				}
			}
		case at.Kind == yaml.SequenceNode:
			if i, err := strconv.Atoi(keys[0]); err == nil && i < len(at.Content) {
				line, next = at.Content[i].Line, at.Content[i]
			}
		}
		if next == nil {
			break
		}
		at = next
	}
	p.errs = append(p.errs, fmt.Errorf("%s: line %d: %s: %s", p.file, line, strings.Join(path, "."), message))
}

func (p *checker) check(c *Config) error {
	for _, host := range slices.Sorted(maps.Keys(c.Mirrors)) {
		p.host("mirrors", host)
		m := c.Mirrors[host]
		if m == nil || len(m.Endpoint) == 0 && len(m.Rewrite) == 0 {
			p.fail("it has no endpoint: name at least one URL", "mirrors", host)
			continue
		}
		for i, e := range m.Endpoint {
			if _, err := endpointURL(e); err != nil {
				p.fail(err.Error(), "mirrors", host, "endpoint", strconv.Itoa(i))
			}
		}
		if _, err := m.prefix(); err != nil {
			p.fail(err.Error(), "mirrors", host, "rewrite")
		}
	}
	for _, host := range slices.Sorted(maps.Keys(c.Configs)) {
		p.host("configs", host)
		a := c.Configs[host]
		if a == nil || a.Auth == nil && a.TLS == nil {
			p.fail("it has neither auth nor tls", "configs", host)
			continue
		}
		p.auth(host, a.Auth)
		p.tls(host, a.TLS)
	}
	return errors.Join(p.errs...)
}

func (p *checker) auth(host string, a *credentials) {
	switch {
	case a == nil:
	case host == everyHost:
		p.fail("credentials for every registry would be shown to any: name the host", "configs", host, "auth")
	case a.Token != "" && a.IdentityToken != "":
		p.fail("token and identity_token are the same: give one", "configs", host, "auth")
	case a.Auth != "":
		if text, err := base64.StdEncoding.DecodeString(a.Auth); err != nil || !bytes.Contains(text, []byte(":")) {
			p.fail("want USER:PASSWORD in base64", "configs", host, "auth", "auth")
		}
	case a.Token == "" && a.IdentityToken == "" && (a.Username == "" || a.Password == ""):
		p.fail("want username and password, or auth, or token", "configs", host, "auth")
	}
}

func (p *checker) tls(host string, t *tlsFiles) {
	if t == nil {
		return
	}
	for _, f := range []struct{ name, path string }{{"ca_file", t.CAFile}, {"cert_file", t.CertFile}, {"key_file", t.KeyFile}} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			p.fail("want an absolute path", "configs", host, "tls", f.name)
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		p.fail("cert_file and key_file: give both or neither", "configs", host, "tls")
	}
}

var hostPattern = regexp.MustCompile(`^(\[[0-9a-fA-F:]+\]|[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?)(:[0-9]{1,5})?$`)

// host refuses what could name a file elsewhere, or nothing at all.
func (p *checker) host(section, host string) {
	if host != everyHost && !hostPattern.MatchString(host) {
		p.fail("want a registry's HOST or HOST:PORT, without scheme and path, or *", section, host)
	}
}

// endpointURL reads an endpoint. Without a scheme it is https, as k3s has it.
func endpointURL(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || !hostPattern.MatchString(u.Host):
		return nil, errors.New("want a URL such as https://mirror.example:5000")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("want http:// or https://")
	case u.User != nil:
		return nil, fmt.Errorf("credentials belong into configs.%q.auth", u.Host)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("a URL with ? or # is no registry's")
	}
	return u, nil
}

// prefix is what the rewrites put before a repository's name. k3s has a
// containerd that was changed for more; the one everybody else has can put a
// prefix before all names.
func (m *mirror) prefix() (string, error) {
	if len(m.Rewrite) == 0 {
		return "", nil
	}
	for from, to := range m.Rewrite {
		prefix, ok := strings.CutSuffix(to, "/$1")
		if !ok {
			prefix, ok = strings.CutSuffix(to, "/${1}")
		}
		all := from == "^(.*)$" || from == "^(.*)" || from == "(.*)" || from == "^(.+)$" || from == "(.+)"
		if ok && all && len(m.Rewrite) == 1 && prefixPattern.MatchString(prefix) {
			return prefix, nil
		}
	}
	return "", errors.New(`containerd can put a prefix before all names only: the one rewrite that is possible is "^(.*)$": "PREFIX/$1"`)
}

var prefixPattern = regexp.MustCompile(`^[a-z0-9]+([._/-]+[a-z0-9]+)*$`)
