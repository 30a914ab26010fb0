package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"
)

// providerTimeout bounds one run of a plugin.
const providerTimeout = time.Minute

// providerVersions are the plugin API versions that are spoken, by the version
// a provider is configured with. All have the same fields.
var providerVersions = []string{
	"credentialprovider.kubelet.k8s.io/v1",
	"credentialprovider.kubelet.k8s.io/v1beta1",
	"credentialprovider.kubelet.k8s.io/v1alpha1",
}

// Account is a service account as providers see it.
type Account struct {
	UID         types.UID
	Annotations map[string]string
}

// Accounts gives providers tokens of a pod's service account.
type Accounts interface {
	Account(ctx context.Context, namespace, name string) (Account, error)
	// Token requests a token for audience, bound to the pod.
	Token(ctx context.Context, pod *v1.Pod, audience string) (string, error)
}

// providerConfig is one plugin of a CredentialProviderConfig file.
type providerConfig struct {
	Name                 string          `json:"name"`
	MatchImages          []string        `json:"matchImages"`
	DefaultCacheDuration string          `json:"defaultCacheDuration"`
	APIVersion           string          `json:"apiVersion"`
	Args                 []string        `json:"args,omitempty"`
	Env                  []providerEnv   `json:"env,omitempty"`
	TokenAttributes      *tokenAttribute `json:"tokenAttributes,omitempty"`

	cacheFor time.Duration
	path     string
}

type providerEnv struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type tokenAttribute struct {
	Audience            string   `json:"serviceAccountTokenAudience"`
	CacheType           string   `json:"cacheType"`
	RequireAccount      *bool    `json:"requireServiceAccount"`
	RequiredAnnotations []string `json:"requiredServiceAccountAnnotationKeys,omitempty"`
	OptionalAnnotations []string `json:"optionalServiceAccountAnnotationKeys,omitempty"`
}

// Providers runs credential provider plugins and caches their answers.
type Providers struct {
	list     []providerConfig
	accounts Accounts
	clock    clock.PassiveClock

	mu    sync.Mutex
	cache map[string]cachedAuth
}

type cachedAuth struct {
	entries []entry
	until   time.Time
}

// LoadProviders reads a CredentialProviderConfig file, or the *.json, *.yaml
// and *.yml files of a directory in order of their names, and finds the plugins
// below binDir. accounts may be nil when no plugin asks for tokens.
func LoadProviders(path, binDir string, accounts Accounts, clk clock.PassiveClock) (*Providers, error) {
	files, err := providerFiles(path)
	if err != nil {
		return nil, fmt.Errorf("finding credential providers: %w", err)
	}
	if clk == nil {
		clk = clock.RealClock{}
	}
	p := &Providers{accounts: accounts, clock: clk, cache: map[string]cachedAuth{}}
	seen := map[string]bool{}
	for _, file := range files {
		list, err := readProviders(file)
		if err != nil {
			return nil, err
		}
		for _, c := range list {
			if seen[c.Name] {
				return nil, fmt.Errorf("credential provider %q is configured twice", c.Name)
			}
			seen[c.Name] = true
			if err := c.complete(binDir); err != nil {
				return nil, fmt.Errorf("credential provider %q: %w", c.Name, err)
			}
			if c.TokenAttributes != nil && accounts == nil {
				return nil, fmt.Errorf("credential provider %q wants service account tokens: the agent runs without an API server", c.Name)
			}
			p.list = append(p.list, c)
		}
	}
	return p, nil
}

func providerFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".json", ".yaml", ".yml":
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no *.json, *.yaml or *.yml file", path)
	}
	return out, nil
}

func readProviders(file string) ([]providerConfig, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading credential providers: %w", err)
	}
	var cfg struct {
		Kind       string           `json:"kind"`
		APIVersion string           `json:"apiVersion"`
		Providers  []providerConfig `json:"providers"`
	}
	if err := yaml.UnmarshalStrict(b, &cfg); err != nil {
		return nil, fmt.Errorf("parsing credential providers %s: %w", file, err)
	}
	group, _, _ := strings.Cut(cfg.APIVersion, "/")
	if cfg.Kind != "CredentialProviderConfig" || group != "kubelet.config.k8s.io" {
		return nil, fmt.Errorf("credential providers %s: kind %q of %q; want CredentialProviderConfig of kubelet.config.k8s.io/v1", file,
			cfg.Kind, cfg.APIVersion)
	}
	return cfg.Providers, nil
}

func (c *providerConfig) complete(binDir string) error {
	if c.Name == "" || c.Name != filepath.Base(c.Name) || strings.ContainsAny(c.Name, " ") || c.Name == "." || c.Name == ".." {
		return errors.New("name must be a plain file name")
	}
	if len(c.MatchImages) == 0 {
		return errors.New("matchImages must not be empty")
	}
	ok := false
	for _, v := range providerVersions {
		ok = ok || c.APIVersion == v
	}
	if !ok {
		return fmt.Errorf("apiVersion %q: allowed are %s", c.APIVersion, strings.Join(providerVersions, ", "))
	}
	d, err := time.ParseDuration(c.DefaultCacheDuration)
	if err != nil || d < 0 {
		return fmt.Errorf("defaultCacheDuration %q: want a duration that is not negative, for example 10m", c.DefaultCacheDuration)
	}
	c.cacheFor = d
	c.path = filepath.Join(binDir, c.Name)
	if _, err := os.Stat(c.path); err != nil {
		return fmt.Errorf("finding the plugin: %w", err)
	}
	return nil
}

// credentials asks every plugin that matches the repository.
func (p *Providers) credentials(ctx context.Context, pod *v1.Pod, repo string) ([]credential, error) {
	var out []credential
	var errs []error
	for i := range p.list {
		c := &p.list[i]
		if !c.matches(repo) {
			continue
		}
		found, err := p.ask(ctx, c, pod, repo)
		if err != nil {
			errs = append(errs, fmt.Errorf("credential provider %q: %w", c.Name, err))
		}
		out = append(out, found...)
	}
	return out, errors.Join(errs...)
}

func (c *providerConfig) matches(repo string) bool {
	for _, pattern := range c.MatchImages {
		if matchServer(pattern, repo) {
			return true
		}
	}
	return false
}

// ask runs one plugin unless an earlier answer still holds.
func (p *Providers) ask(ctx context.Context, c *providerConfig, pod *v1.Pod, repo string) ([]credential, error) {
	req := map[string]any{"kind": "CredentialProviderRequest", "apiVersion": c.APIVersion, "image": repo}
	var source source
	scope := ""
	if c.TokenAttributes != nil {
		src, extra, err := p.account(ctx, c, pod, req)
		if err != nil || src == nil {
			return nil, err
		}
		source, scope = *src, extra
	}
	registry, _, _ := strings.Cut(repo, "/")
	now := p.clock.Now()
	p.mu.Lock()
	p.forget(now)
	for _, k := range []string{repo, registry, "*"} {
		if hit, ok := p.cache[c.Name+"|"+scope+"|"+k]; ok && now.Before(hit.until) {
			p.mu.Unlock()
			return lend(hit.entries, repo, source), nil
		}
	}
	p.mu.Unlock()
	resp, err := c.run(ctx, req)
	if err != nil {
		return nil, err
	}
	var entries []entry
	for server, a := range resp.Auth {
		entries = append(entries, entry{server: server, cred: credential{Username: a.Username, Password: a.Password}})
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].server < entries[j].server })
	keep := c.cacheFor
	if resp.CacheDuration != "" {
		if d, err := time.ParseDuration(resp.CacheDuration); err == nil {
			keep = d
		}
	}
	keyed := map[string]string{"Image": repo, "Registry": registry, "Global": "*"}[resp.CacheKeyType]
	if keyed == "" {
		return nil, fmt.Errorf("cacheKeyType %q: allowed are Image, Registry and Global", resp.CacheKeyType)
	}
	if keep > 0 {
		p.mu.Lock()
		p.cache[c.Name+"|"+scope+"|"+keyed] = cachedAuth{entries, now.Add(keep)}
		p.forget(now)
		p.mu.Unlock()
	}
	return lend(entries, repo, source), nil
}

// maxCached bounds the answers that are kept. With tokens as keys each pod
// may add some.
const maxCached = 1000

// forget drops expired credentials, and above the bound those that expire
// first. The caller holds mu.
func (p *Providers) forget(now time.Time) {
	maps.DeleteFunc(p.cache, func(_ string, a cachedAuth) bool { return !now.Before(a.until) })
	if len(p.cache) <= maxCached {
		return
	}
	keys := slices.SortedFunc(maps.Keys(p.cache), func(a, b string) int { return p.cache[a].until.Compare(p.cache[b].until) })
	for _, key := range keys[:len(keys)-maxCached] {
		delete(p.cache, key)
	}
}

func lend(entries []entry, repo string, source source) []credential {
	out := matching(entries, repo)
	for i := range out {
		out[i].Source = source
	}
	return out
}

// account adds the pod's service account to a request. A nil source means
// that this plugin has nothing to do for this pod.
func (p *Providers) account(ctx context.Context, c *providerConfig, pod *v1.Pod, req map[string]any) (*source, string, error) {
	t := c.TokenAttributes
	name := pod.Spec.ServiceAccountName
	if name == "" {
		if t.RequireAccount != nil && *t.RequireAccount {
			return nil, "", nil
		}
		return &source{}, "", nil
	}
	a, err := p.accounts.Account(ctx, pod.Namespace, name)
	if err != nil {
		return nil, "", fmt.Errorf("reading service account %s/%s: %w", pod.Namespace, name, err)
	}
	annotations := map[string]string{}
	for _, k := range t.RequiredAnnotations {
		v, ok := a.Annotations[k]
		if !ok {
			return nil, "", fmt.Errorf("service account %s/%s lacks annotation %q", pod.Namespace, name, k)
		}
		annotations[k] = v
	}
	for _, k := range t.OptionalAnnotations {
		if v, ok := a.Annotations[k]; ok {
			annotations[k] = v
		}
	}
	token, err := p.accounts.Token(ctx, pod, t.Audience)
	if err != nil {
		return nil, "", err
	}
	req["serviceAccountToken"] = token
	req["serviceAccountAnnotations"] = annotations
	scope := string(a.UID) + "/" + pod.Namespace + "/" + name
	if t.CacheType == "Token" {
		scope += "/" + (&credential{RegistryToken: token}).hash()
	}
	return &source{AccountUID: string(a.UID), AccountNamespace: pod.Namespace, Account: name}, scope, nil
}

type providerResponse struct {
	Kind          string                  `json:"kind"`
	APIVersion    string                  `json:"apiVersion"`
	CacheKeyType  string                  `json:"cacheKeyType"`
	CacheDuration string                  `json:"cacheDuration"`
	Auth          map[string]providerAuth `json:"auth"`
}

type providerAuth struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// run executes the plugin once. What it prints may hold secrets and is never
// part of an error.
func (c *providerConfig) run(ctx context.Context, req map[string]any) (*providerResponse, error) {
	in, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, c.Args...)
	cmd.Env = os.Environ()
	for _, e := range c.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	var stdout bytes.Buffer
	cmd.Stdin, cmd.Stdout = bytes.NewReader(in), &stdout
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running the plugin: %w", err)
	}
	return c.answer(stdout.Bytes())
}

// answer reads what a plugin said. Errors do not repeat it: it may hold a
// password.
func (c *providerConfig) answer(text []byte) (*providerResponse, error) {
	var out providerResponse
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, errors.New("the plugin's answer is not JSON of kind CredentialProviderResponse")
	}
	if out.Kind != "CredentialProviderResponse" || out.APIVersion != c.APIVersion {
		return nil, fmt.Errorf("the plugin answered with kind %q of %q; want CredentialProviderResponse of %q", out.Kind, out.APIVersion,
			c.APIVersion)
	}
	return &out, nil
}
