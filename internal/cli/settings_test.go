package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestFillFlags: the command line wins over the environment, that over the file.
func TestFillFlags(t *testing.T) {
	for _, c := range []struct {
		name, file string
		args       []string
		env        map[string]string
		want       string // flag=value, or an error's words
	}{
		{"the file alone", "cluster-cidr: 10.1.0.0/16\n", nil, nil, "cluster-cidr=10.1.0.0/16"},
		{"the environment wins over the file", "cluster-cidr: 10.1.0.0/16\n", nil, map[string]string{"BERTH_CLUSTER_CIDR": "10.2.0.0/16"},
			"cluster-cidr=10.2.0.0/16"},
		{"a flag wins over both", "cluster-cidr: 10.1.0.0/16\n", []string{"--cluster-cidr=10.3.0.0/16"},
			map[string]string{"BERTH_CLUSTER_CIDR": "10.2.0.0/16"}, "cluster-cidr=10.3.0.0/16"},
		{"a list", "tls-san: [a.example, b.example]\n", nil, nil, "tls-san=[a.example,b.example]"},
		{"a number", "api-port: 7443\n", nil, nil, "api-port=7443"},
		{"false", "network-policy: false\n", nil, nil, "network-policy=false"},
		{"a duration", "certificate-lifetime: 720h\n", nil, nil, "certificate-lifetime=720h0m0s"},
		{"the data directory", "data-dir: /x\n", nil, nil, "data-dir=/x"},
		{"the data directory of the environment", "data-dir: /x\n", nil, map[string]string{"BERTH_DATA_DIR": "/y"},
			"data-dir=/var/lib/berth"},
		{"a name wins over the file's data directory", "data-dir: /x\n", []string{"--name=a"}, nil, "data-dir=/var/lib/berth"},
		{"a misspelt key", "cluster-cdir: 10.1.0.0/16\n", nil, nil, "! cluster-cdir: unknown key; did you mean cluster-cidr?"},
		{"underscores", "node_name: a\n", nil, nil, "! did you mean node-name?"},
		{"a key of nothing", "colour-of-the-sky: blue\n", nil, nil, "! unknown key; keys are the flags"},
		{"a key of one start", "detach: true\n", nil, nil, "! detach: this is for one start"},
		{"a wrong value", "api-port: many\n", nil, nil, "! api-port: "},
		{"a map", "tls-san: {a: b}\n", nil, nil, "! tls-san: want a text"},
		{"no value", "tls-san:\n", nil, nil, "! tls-san: it has no value"},
		{"a key twice", "api-port: 1\napi-port: 2\n", nil, nil, "! already set"},
		{"a wrong value in the environment", "", nil, map[string]string{"BERTH_API_PORT": "many"}, "! environment BERTH_API_PORT"},
	} {
		t.Setenv("BERTH_DATA_DIR", "")
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := upCommand()
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		err := fillFlags(cmd.Flags(), file, func(name string) (string, bool) { v, ok := c.env[name]; return v, ok })
		if words, bad := strings.CutPrefix(c.want, "! "); bad {
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v, want %q", c.name, err, words)
			}
			continue
		}
		name, want, _ := strings.Cut(c.want, "=")
		if err != nil || cmd.Flags().Lookup(name).Value.String() != want {
			t.Errorf("%s: %s=%s, want %s; %v", c.name, name, cmd.Flags().Lookup(name).Value, want, err)
		}
	}
	if err := fillFlags(upCommand().Flags(), "/nowhere/config.yaml", os.LookupEnv); err == nil || !strings.Contains(err.Error(),
		"--config") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestEveryFlagIsAKey: each flag of each role can be set to its default by the
// file, so that none is forgotten.
func TestEveryFlagIsAKey(t *testing.T) {
	for name, make := range roleCommands {
		make().Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Hidden || flag.Name == "config" {
				return
			}
			err := checkKey(make().Flags(), "f", flag.Name)
			if one := err != nil && strings.Contains(err.Error(), "one start"); err != nil && !one {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}
