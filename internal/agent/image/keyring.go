package image

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// credential is what a registry may be shown, and where it came from.
type credential struct {
	Username, Password, IdentityToken, RegistryToken string
	// source says who lends it.
	Source source
}

// source is the origin of a credential: a pull secret, a service account (by
// way of a provider plugin), or the node itself when both are empty.
type source struct {
	SecretUID, SecretNamespace, SecretName string
	AccountUID, AccountNamespace, Account  string
}

// auth is the credential as the runtime takes it. It was chosen for the image
// already: a server's address beside it, which may hold globs or be no URL,
// only gives runtimes a reason to refuse it.
func (c *credential) auth() *runtimeapi.AuthConfig {
	return &runtimeapi.AuthConfig{Username: c.Username, Password: c.Password, IdentityToken: c.IdentityToken,
		RegistryToken: c.RegistryToken}
}

// hash identifies a credential without revealing it.
func (c *credential) hash() string {
	h := sha256.New()
	for _, s := range []string{c.Username, c.Password, c.IdentityToken, c.RegistryToken} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// fingerprint identifies a list of credentials.
func fingerprint(list []credential) string {
	h := sha256.New()
	for i := range list {
		fmt.Fprintln(h, list[i].hash())
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// entry is one line of a docker configuration.
type entry struct {
	server string
	cred   credential
}

// dockerAuth is one registry of a docker configuration file.
type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// parseDockerConfig reads the JSON of a docker configuration: the modern form
// with "auths", or the bare map of the legacy form. Entries that hold nothing
// usable are skipped; errors never quote contents.
func parseDockerConfig(b []byte, legacy bool) ([]entry, error) {
	auths := map[string]dockerAuth{}
	if legacy {
		if err := json.Unmarshal(b, &auths); err != nil {
			return nil, errors.New("parsing .dockercfg: not a JSON map from registry to credentials")
		}
	} else {
		var file struct {
			Auths map[string]dockerAuth `json:"auths"`
		}
		if err := json.Unmarshal(b, &file); err != nil {
			return nil, errors.New("parsing docker config: not JSON with a map \"auths\"")
		}
		auths = file.Auths
	}
	var out []entry
	for server, a := range auths {
		c := credential{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
		if a.Auth != "" {
			user, password, err := decodeAuth(a.Auth)
			if err != nil {
				return nil, fmt.Errorf("parsing docker config: registry %q: %w", server, err)
			}
			c.Username, c.Password = user, password
		}
		if c.Username == "" && c.Password == "" && c.IdentityToken == "" && c.RegistryToken == "" {
			continue
		}
		out = append(out, entry{server: server, cred: c})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].server < out[j].server })
	return out, nil
}

func decodeAuth(s string) (user, password string, err error) {
	// Some tools pad, some do not.
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(s), "="))
	if err != nil {
		return "", "", errors.New("auth is not base64")
	}
	user, password, ok := strings.Cut(string(b), ":")
	if !ok {
		return "", "", errors.New("auth is not base64 of user:password")
	}
	return user, strings.TrimRight(password, "\x00"), nil
}

// matchServer says whether a configured server covers an image's repository
// ("host[:port]/path"). Globs match one label of the host each; a path must be
// a prefix; a port must be equal.
func matchServer(server, repository string) bool {
	host, prefix, ok := splitServer(server)
	if !ok {
		return false
	}
	imageHost, imagePath, _ := strings.Cut(repository, "/")
	if isHub(host) && isHub(imageHost) {
		// Docker Hub has three names and an index path of its own.
		return prefix == "" || prefix == "v1" || prefix == "v2" || hasPath(imagePath, prefix)
	}
	return matchHost(host, imageHost) && (prefix == "" || prefix == "v1" || prefix == "v2" || hasPath(imagePath, prefix))
}

func isHub(host string) bool {
	switch host {
	case "docker.io", "index.docker.io", "registry-1.docker.io":
		return true
	}
	return false
}

func hasPath(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix)
}

// splitServer takes "scheme://host[:port]/path" apart; host may hold globs,
// so it is no URL.
func splitServer(server string) (host, prefix string, ok bool) {
	if _, rest, found := strings.Cut(server, "://"); found {
		server = rest
	}
	host, prefix, _ = strings.Cut(server, "/")
	return host, strings.Trim(prefix, "/"), host != ""
}

func matchHost(pattern, host string) bool {
	if pattern == host {
		return true // also spares IPv6 brackets from being read as a glob
	}
	ph, pp := splitPort(pattern)
	hh, hp := splitPort(host)
	if pp != hp {
		return false
	}
	pl, hl := strings.Split(ph, "."), strings.Split(hh, ".")
	if len(pl) != len(hl) {
		return false
	}
	for i := range pl {
		if ok, err := path.Match(pl[i], hl[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func splitPort(s string) (host, port string) {
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.Contains(s[i:], "]") {
		return s[:i], s[i+1:]
	}
	return s, ""
}

// specificity orders servers: the longest path first, then names before globs.
func specificity(server string) (int, int) {
	host, prefix, _ := splitServer(server)
	return len(prefix), -strings.Count(host, "*")
}

// keyring returns how to find the credentials that a pod may show for an
// image: its pull secrets, then the node's files, then provider plugins. They
// are looked up at most once, and only if something needs them.
func (p *Puller) keyring(r request) func(context.Context) []credential {
	var found []credential
	done := false
	return func(ctx context.Context) []credential {
		if !done {
			found, done = p.credentials(ctx, r), true
		}
		return found
	}
}

func (p *Puller) credentials(ctx context.Context, r request) []credential {
	_, named, err := normalize(r.Image)
	if err != nil {
		return nil
	}
	repo := repository(named)
	out := p.secretCredentials(ctx, r, repo)
	for _, file := range p.cfg.NodeCredentials {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		entries, err := parseDockerConfig(b, false)
		if err != nil {
			p.cfg.Log.Warn("reading node credentials", "file", file, "err", err)
			continue
		}
		out = append(out, matching(entries, repo)...)
	}
	if p.cfg.Providers != nil {
		more, err := p.cfg.Providers.credentials(ctx, r.Pod, repo)
		if err != nil {
			p.cfg.Log.Warn("asking credential providers", "image", r.Image, "err", err)
		}
		out = append(out, more...)
	}
	return dedup(out)
}

func (p *Puller) secretCredentials(ctx context.Context, r request, repo string) []credential {
	if p.cfg.Secret == nil || r.Pod == nil {
		return nil
	}
	var out []credential
	var missing []string
	for _, ref := range r.Pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := p.cfg.Secret(ctx, r.Pod.Namespace, ref.Name)
		if err != nil {
			missing = append(missing, ref.Name)
			continue
		}
		entries, err := secretEntries(s)
		if err != nil {
			p.cfg.Log.Warn("reading pull secret", "secret", s.Namespace+"/"+s.Name, "err", err)
			continue
		}
		for _, c := range matching(entries, repo) {
			c.Source = source{SecretUID: string(s.UID), SecretNamespace: s.Namespace, SecretName: s.Name}
			out = append(out, c)
		}
	}
	if len(missing) > 0 {
		p.event(r, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret", fmt.Sprintf(
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
	return out
}

func secretEntries(s *v1.Secret) ([]entry, error) {
	if b, ok := s.Data[v1.DockerConfigJsonKey]; ok && (s.Type == v1.SecretTypeDockerConfigJson || s.Type == "") {
		return parseDockerConfig(b, false)
	}
	if b, ok := s.Data[v1.DockerConfigKey]; ok && (s.Type == v1.SecretTypeDockercfg || s.Type == "") {
		return parseDockerConfig(b, true)
	}
	return nil, fmt.Errorf("type %q: allowed are %s and %s", s.Type, v1.SecretTypeDockerConfigJson, v1.SecretTypeDockercfg)
}

// matching picks the credentials for a repository, most specific first.
func matching(entries []entry, repo string) []credential {
	var hits []entry
	for _, e := range entries {
		if matchServer(e.server, repo) {
			hits = append(hits, e)
		}
	}
	sort.SliceStable(hits, func(i, j int) bool {
		li, gi := specificity(hits[i].server)
		lj, gj := specificity(hits[j].server)
		return li > lj || li == lj && gi > gj
	})
	out := make([]credential, 0, len(hits))
	for _, e := range hits {
		out = append(out, e.cred)
	}
	return out
}

// dedup drops credentials that would be shown twice.
func dedup(list []credential) []credential {
	seen := map[string]bool{}
	var out []credential
	for _, c := range list {
		k := c.hash() + "|" + c.Source.SecretUID + "|" + c.Source.AccountUID
		if !seen[k] {
			seen[k] = true
			out = append(out, c)
		}
	}
	return out
}
