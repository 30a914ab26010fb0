package image

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestMatchServer(t *testing.T) {
	for _, c := range []struct {
		server, repo string
		want         bool
	}{
		{"r.example", "r.example/a", true},
		{"https://r.example", "r.example/a", true},
		{"r.example:5000", "r.example/a", false},
		{"r.example:5000", "r.example:5000/a", true},
		{"*.example", "r.example/a", true},
		{"*.example", "a.b.example/a", false},
		{"r*.exa?ple", "reg.example/a", true},
		{"r.example/team", "r.example/team/app", true},
		{"r.example/team", "r.example/other", false},
		{"https://index.docker.io/v1/", "docker.io/library/nginx", true},
		{"docker.io", "docker.io/library/nginx", true},
		{"registry.example/v2/", "registry.example/x", true},
		{"", "r.example/a", false},
		{"https://[::1]:5000", "[::1]:5000/a", true},
		{"://", "r.example/a", false},
	} {
		if got := matchServer(c.server, c.repo); got != c.want {
			t.Errorf("%q covers %q: %v", c.server, c.repo, got)
		}
	}
}

func TestDockerConfigs(t *testing.T) {
	for _, c := range []struct {
		text   string
		legacy bool
		want   string
	}{
		{`{"auths":{"r":{"auth":"dTpwOnE="}}}`, false, "r u p:q"},
		{`{"auths":{"r":{"auth":"dTpw"}}}`, false, "r u p"},
		{`{"auths":{"r":{"username":"u","password":"p"},"s":{}}}`, false, "r u p"},
		{`{"r":{"username":"u","password":"p"}}`, true, "r u p"},
		{`{"auths":{"r":{"auth":"%%%"}}}`, false, "error"},
		{`{"auths":{"r":{"auth":"dXNlcg=="}}}`, false, "error"},
		{`nope`, false, "error"},
		{`[]`, true, "error"},
		{`{}`, false, ""},
	} {
		entries, err := parseDockerConfig([]byte(c.text), c.legacy)
		var got []string
		for _, e := range entries {
			got = append(got, e.server+" "+e.cred.Username+" "+e.cred.Password)
		}
		text := strings.Join(got, ",")
		if err != nil {
			text = "error"
			if strings.Contains(err.Error(), "dXNlcg") || strings.Contains(err.Error(), "%%%") {
				t.Errorf("%s: the error quotes contents: %v", c.text, err)
			}
		}
		if text != c.want {
			t.Errorf("%s: %q (%v), want %q", c.text, text, err, c.want)
		}
	}
}

func FuzzDockerConfig(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://a/b":{"auth":"dTpw"}}}`), "a/b/c")
	f.Add([]byte(`{"x":{"username":"u"}}`), "x/y")
	f.Fuzz(func(_ *testing.T, b []byte, repo string) {
		for _, legacy := range []bool{true, false} {
			if entries, err := parseDockerConfig(b, legacy); err == nil {
				matching(entries, repo)
			}
		}
	})
}

// Random requests from registries with queues of different lengths: never more
// than the bound, nothing is lost, and no registry gets a second slot while
// another that has none waits.
func TestSlotsAreBoundedAndFair(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	s := newSlots(3)
	type waiter struct {
		registry string
		ready    chan func()
		cancel   context.CancelFunc
	}
	var waiting []waiter
	held := map[string][]func(){}
	total := 0
	for range 2000 {
		switch r.IntN(3) {
		case 0:
			registry := fmt.Sprint(r.IntN(4))
			ctx, cancel := context.WithCancel(context.Background())
			w := waiter{registry, make(chan func(), 1), cancel}
			s.mu.Lock()
			before := len(s.waiters[registry])
			free := s.free > 0 && len(s.order) == 0
			s.mu.Unlock()
			go func() {
				release, err := s.acquire(ctx, registry)
				if err != nil {
					release = nil
				}
				w.ready <- release
			}()
			if free {
				held[registry] = append(held[registry], <-w.ready)
				total++
				break
			}
			for { // until the waiter stands in line
				s.mu.Lock()
				n := len(s.waiters[registry])
				s.mu.Unlock()
				if n > before {
					break
				}
			}
			waiting = append(waiting, w)
		case 1:
			if total == 0 {
				break
			}
			for registry, list := range held {
				if len(list) == 0 {
					continue
				}
				list[0]()
				held[registry] = list[1:]
				total--
				break
			}
			if len(waiting) == 0 {
				break
			}
			least := 1 << 30
			for _, w := range waiting {
				least = min(least, len(held[w.registry]))
			}
			got := -1
			for got < 0 {
				for i, w := range waiting {
					select {
					case release := <-w.ready:
						if len(held[w.registry]) > least {
							t.Fatalf("registry %s with %d pulls was preferred to one with %d", w.registry, len(held[w.registry]), least)
						}
						held[w.registry] = append(held[w.registry], release)
						got = i
					default:
					}
					if got >= 0 {
						break
					}
				}
			}
			waiting = append(waiting[:got], waiting[got+1:]...)
			total++
		case 2:
			if len(waiting) == 0 || r.IntN(4) > 0 {
				break
			}
			i := r.IntN(len(waiting))
			waiting[i].cancel()
			if release := <-waiting[i].ready; release != nil {
				t.Fatal("a waiter that gave up got a slot although none was free")
			}
			waiting = append(waiting[:i], waiting[i+1:]...)
		}
		if total > 3 {
			t.Fatalf("%d slots are held", total)
		}
	}
	for _, w := range waiting {
		w.cancel()
		<-w.ready
	}
	for _, list := range held {
		for _, release := range list {
			release()
			release() // twice is once
		}
	}
	if s.free != 3 || len(s.order) != 0 || len(s.active) != 0 || len(s.waiters) != 0 {
		t.Errorf("slots left: free %d, order %v, active %v", s.free, s.order, s.active)
	}
}

type accounts struct{}

func (accounts) Account(context.Context, string, string) (Account, error) {
	return Account{UID: "sa-uid", Annotations: map[string]string{"role": "r1"}}, nil
}

func (accounts) Token(_ context.Context, pod *v1.Pod, audience string) (string, error) {
	return "token-for-" + audience, nil
}

func TestProviders(t *testing.T) {
	dir := t.TempDir()
	runs := filepath.Join(dir, "runs")
	plugin := `#!/bin/sh
cat >> ` + runs + `
echo >> ` + runs + `
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry",` +
		`"cacheDuration":"1m","auth":{"*.example":{"username":"'$WHO'","password":"p"}}}'
`
	if err := os.WriteFile(filepath.Join(dir, "plug"), []byte(plugin), 0o755); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.yaml")
	write := func(extra string) {
		text := `kind: CredentialProviderConfig
apiVersion: kubelet.config.k8s.io/v1
providers:
- name: plug
  matchImages: ["*.example"]
  defaultCacheDuration: 10m
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  env: [{name: WHO, value: me}]
` + extra
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	clk := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	p, err := LoadProviders(config, dir, nil, clk)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	ask := func(repo string, want int) {
		t.Helper()
		creds, err := p.credentials(ctx, testPod("a"), repo)
		if err != nil || len(creds) != want || want > 0 && creds[0].Username != "me" {
			t.Fatalf("%s: %v, %v", repo, creds, err)
		}
	}
	count := func() int {
		b, _ := os.ReadFile(runs)
		return strings.Count(string(b), "\n")
	}
	ask("r.example/a", 1)
	ask("r.example/b", 1) // the same registry
	ask("other.org/a", 0)
	if count() != 1 {
		t.Errorf("%d runs, want 1", count())
	}
	ask("s.example/a", 1)
	clk.SetTime(clk.Now().Add(2 * time.Minute))
	ask("r.example/a", 1)
	if count() != 3 {
		t.Errorf("%d runs, want 3", count())
	}
	if len(p.cache) != 1 {
		t.Errorf("%d answers are kept; the expired one of s.example must go", len(p.cache))
	}
	for i := range maxCached + 10 {
		p.cache[fmt.Sprint(i)] = cachedAuth{until: clk.Now().Add(time.Hour)}
	}
	ask("r.example/a", 1)
	ask("t.example/a", 1)
	if len(p.cache) > maxCached {
		t.Errorf("%d answers are kept, want at most %d", len(p.cache), maxCached)
	}

	write("  tokenAttributes: {serviceAccountTokenAudience: aud, cacheType: ServiceAccount, requireServiceAccount: true, " +
		"requiredServiceAccountAnnotationKeys: [role]}\n")
	if _, err := LoadProviders(config, dir, nil, clk); err == nil {
		t.Error("tokens without an API server were accepted")
	}
	if p, err = LoadProviders(config, dir, accounts{}, clk); err != nil {
		t.Fatal(err)
	}
	pod := testPod("a")
	if creds, err := p.credentials(ctx, pod, "r.example/a"); err != nil || len(creds) != 0 {
		t.Errorf("without a service account: %v, %v", creds, err)
	}
	pod.Spec.ServiceAccountName = "sa"
	creds, err := p.credentials(ctx, pod, "r.example/a")
	if err != nil || len(creds) != 1 || creds[0].Source.AccountUID != "sa-uid" {
		t.Errorf("with one: %v, %v", creds, err)
	}
	if b, _ := os.ReadFile(runs); !strings.Contains(string(b), `"serviceAccountToken":"token-for-aud"`) || !strings.Contains(string(b),
		`"role":"r1"`) {
		t.Errorf("the plugin was told %s", b)
	}
	for _, bad := range []string{"  unknown: 1\n", "- name: plug\n"} {
		write(bad)
		if _, err := LoadProviders(config, dir, nil, clk); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// FuzzProviderAnswer takes in whatever a credential provider plugin may print.
func FuzzProviderAnswer(f *testing.F) {
	f.Add([]byte(`{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry",` +
		`"cacheDuration":"1m",` +
		`"auth":{"*.example":{"username":"u","password":"hunter2"}}}`))
	f.Add([]byte(`{"kind":"hunter2"`))
	c := &providerConfig{APIVersion: providerVersions[0]}
	f.Fuzz(func(t *testing.T, text []byte) {
		answer, err := c.answer(text)
		if err != nil {
			return
		}
		for server := range answer.Auth {
			matchServer(server, "registry.example/image")
		}
	})
}
