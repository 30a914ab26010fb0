package registries

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write makes dir a hosts directory with these files: what it wrote before and
// what is not among them goes, files of others stay. A file of somebody else's
// in the place of one of them is an error.
func Write(dir string, hosts map[string]string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of registries: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the directory of registries: %w", err)
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name(), "hosts.toml")
		have, err := os.ReadFile(file)
		if _, wanted := hosts[e.Name()]; wanted || !e.IsDir() || err != nil || !ours(have) {
			continue
		}
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("removing a registry that left registries.yaml: %w", err)
		}
		_ = os.Remove(filepath.Dir(file)) // unless it has other files
	}
	for name, text := range hosts {
		if err := writeOne(filepath.Join(dir, name, "hosts.toml"), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

func writeOne(file string, text []byte) error {
	have, err := os.ReadFile(file)
	switch {
	case err == nil && bytes.Equal(have, text):
		return nil
	case err == nil && !ours(have):
		return fmt.Errorf("%s was not written by berth, and registries.yaml speaks of the same registry: move it away, or take the "+
			"registry out of registries.yaml", file)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("reading what is there for a registry: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("making the directory of a registry: %w", err)
	}
	// containerd reads it at each pull: it must never see half of it.
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return fmt.Errorf("writing how a registry is reached: %w", err)
	}
	return os.Rename(file+".new", file)
}

func ours(text []byte) bool { return bytes.HasPrefix(text, []byte(signature)) }
