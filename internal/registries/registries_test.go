package registries

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFiles: testdata/NAME.yaml becomes what testdata/NAME.golden shows.
// UPDATE_GOLDEN=1 writes it.
func TestFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c, err := Parse(text, file)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			hosts := c.Hosts()
			for _, h := range slices.Sorted(maps.Keys(hosts)) {
				fmt.Fprintf(&b, "--- %s/hosts.toml\n%s", h, hosts[h])
			}
			fmt.Fprintf(&b, "--- credentials\n%s", c.Credentials())
			golden := strings.TrimSuffix(file, "yaml") + "golden"
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("%s:\n%s\nwant:\n%s", golden, b.String(), want)
			}
			for _, text := range hosts {
				if strings.Contains(text, "secret") {
					t.Errorf("a secret in hosts.toml:\n%s", text)
				}
			}
		})
	}
}

// TestRefusals: each error names the line and the field and what is allowed,
// and no value of a secret field.
func TestRefusals(t *testing.T) {
	for text, want := range map[string][]string{
		"mirrors:\n  docker.io:\n    endpoints: [a]\n": {"f: line 3: ", "endpoints", "allowed are endpoint, rewrite"},
		"mirror: {}\n":               {"f: line 1: ", "allowed are mirrors, configs"},
		"mirrors: {docker.io: {}}\n": {"line 1", "mirrors.docker.io", "no endpoint"},
		"mirrors:\n  x.io:\n    endpoint:\n    - https://a\n    - ftp://b\n": {"line 5", "mirrors.x.io.endpoint.1",
			"want http:// or https://"},
		"mirrors:\n  x.io:\n    endpoint: ['https://u:secret@b']\n": {"line 3",
			`credentials belong into configs."b".auth`},
		"mirrors:\n  https://x.io:\n    endpoint: [b]\n": {"line 2", "HOST:PORT"},
		"mirrors:\n  ../../etc:\n    endpoint: [b]\n":    {"line 2", "HOST:PORT"},
		"mirrors:\n  x.io:\n    endpoint: [b]\n    rewrite: {'^a/(.*)': 'b/$1'}\n": {"line 4", "mirrors.x.io.rewrite",
			`"^(.*)$": "PREFIX/$1"`},
		"configs:\n  x.io:\n    auth: secret\n":                                  {"line 3", "username, password"},
		"configs:\n  x.io:\n    auth: {password: [secret]}\n":                    {"line 3"},
		"configs:\n  x.io:\n    auth: {passwort: secret}\n":                      {"line 3", "passwort", "username, password"},
		"configs:\n  x.io:\n    auth: {password: secret}\n":                      {"line 3", "want username and password"},
		"configs:\n  x.io:\n    auth: {auth: secret}\n":                          {"line 3", "configs.x.io.auth.auth", "base64"},
		"configs:\n  x.io:\n    auth: {token: secret, identity_token: secret}\n": {"line 3", "give one"},
		"configs:\n  '*':\n    auth: {username: u, password: secret}\n":          {"line 3", "name the host"},
		"configs:\n  x.io:\n    tls: {ca_file: ca.crt}\n": {"line 3", "configs.x.io.tls.ca_file",
			"absolute path"},
		"configs:\n  x.io:\n    tls: {cert_file: /a}\n":                               {"line 3", "give both or neither"},
		"configs:\n  x.io: {}\n":                                                      {"line 2", "neither auth nor tls"},
		"configs:\n  x.io:\n    auth: {username: a, password: \"secret}\n":            {"f: "},
		"configs:\n  x.io:\n    auth: {username: a, username: secret, password: b}\n": {"line 3", "already"},
	} {
		_, err := Parse([]byte(text), "f")
		if err == nil {
			t.Errorf("accepted:\n%s", text)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("nothing of %q in: %v", w, err)
			}
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
	if c, err := Parse(nil, "f"); err != nil || len(c.Hosts()) != 0 || c.Credentials() != "" {
		t.Error("an empty file:", c, err)
	}
}

// TestWrite: what leaves the file leaves the directory, and what somebody else
// wrote stays.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "registries")
	foreign := filepath.Join(dir, "own.example", "hosts.toml")
	if err := os.MkdirAll(filepath.Dir(foreign), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(foreign, []byte("server = \"https://own.example\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hosts := map[string]string{"a.example": signature + "\n", "b.example:5000": signature + "\nserver = \"x\"\n"}
	for range 2 {
		if err := Write(dir, hosts); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range hosts {
		file := filepath.Join(dir, name, "hosts.toml")
		got, err := os.ReadFile(file)
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if st, err := os.Stat(file); err == nil && st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, st.Mode())
		}
	}
	if err := Write(dir, map[string]string{"own.example": signature}); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("a foreign file: %v", err)
	}
	if err := Write(dir, nil); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "own.example" {
		t.Errorf("left are %v, %v", entries, err)
	}
}

func TestQuote(t *testing.T) {
	if got := quote("a\"b\\c\n\x7fé"); got != `"a\"b\\c\u000a\u007fé"` {
		t.Error(got)
	}
}
