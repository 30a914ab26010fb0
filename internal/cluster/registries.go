package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/registries"
)

// defaultRegistries is where registries.yaml is looked for after the data directory.
const defaultRegistries = "/etc/berth/registries.yaml"

// registries reads registries.yaml. Without one the configuration is empty, and
// so is file.
func (c *Config) registries() (cfg *registries.Config, file string, err error) {
	if !c.Role.node() {
		return &registries.Config{}, "", nil
	}
	candidates := []string{c.Path("registries.yaml"), defaultRegistries}
	if c.Registries != "" {
		candidates = []string{c.Registries}
		if c.RuntimeEndpoint != "" {
			return nil, "", fmt.Errorf("--registries %s: berth configures its own containerd only; configure the one of "+
				"--container-runtime-endpoint by its hosts directory (config_path)", c.Registries)
		}
	}
	for _, file := range candidates {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) && c.Registries == "" {
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("reading --registries: %w", err)
		}
		cfg, err := registries.Parse(text, file)
		return cfg, file, err
	}
	return &registries.Config{}, "", nil
}

// writeRegistries writes containerd's hosts directory and returns the
// credentials for its configuration.
func (c *Config) writeRegistries() (credentials string, notes []string, err error) {
	cfg, file, err := c.registries()
	if err != nil {
		return "", nil, err
	}
	credentials = cfg.Credentials()
	if st, err := os.Stat(file); credentials != "" && err == nil && st.Mode().Perm()&0o077 != 0 {
		notes = append(notes, fmt.Sprintf("%s holds passwords and others than its owner may read it: chmod 600 %s", file, file))
	}
	return credentials, notes, registries.Write(c.Path("registries"), cfg.Hosts())
}

// fragments is the directory of configuration files that containerd merges, and
// the sum of what they hold; both are empty where there are none.
func (c *Config) fragments() (dir, sum string, err error) {
	if !c.Role.node() || c.RuntimeEndpoint != "" && c.ContainerdConfigDir == "" {
		return "", "", nil
	}
	if c.RuntimeEndpoint != "" {
		return "", "", fmt.Errorf("--containerd-config-dir %s: berth configures its own containerd only; configure the one of "+
			"--container-runtime-endpoint where it is configured", c.ContainerdConfigDir)
	}
	if dir = c.ContainerdConfigDir; dir == "" {
		dir = c.Path("containerd.d")
	} else if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return "", "", fmt.Errorf("--containerd-config-dir %s: want a directory with *.toml files", dir)
	}
	if sum, err = containerd.Fragments(dir); err != nil || sum == "" {
		return "", "", err
	}
	return dir, sum, nil
}
