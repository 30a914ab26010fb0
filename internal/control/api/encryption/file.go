package encryption

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"
)

// keyBytes is the length of a secretbox key.
const keyBytes = 32

// Create writes the configuration of a new cluster: Secrets under one fresh
// secretbox key; clear ones stay readable. It refuses to replace a file.
func Create(file string) error {
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("writing the encryption configuration: %s is there already", file)
	}
	key, err := freshKey(1)
	if err != nil {
		return err
	}
	return write(file, &apiserverv1.EncryptionConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiserver.config.k8s.io/v1", Kind: "EncryptionConfiguration"},
		Resources: []apiserverv1.ResourceConfiguration{{Resources: []string{"secrets"}, Providers: []apiserverv1.ProviderConfiguration{
			{Secretbox: &apiserverv1.SecretboxConfiguration{Keys: []apiserverv1.Key{key}}},
			{Identity: &apiserverv1.IdentityConfiguration{}},
		}}},
	})
}

// AddKey puts a fresh key first in a file that Create wrote: what is written
// from the next load on is encrypted with it, and the older keys still read.
func AddKey(file string) error {
	return change(file, func(keys []apiserverv1.Key) ([]apiserverv1.Key, error) {
		last := 0
		for _, k := range keys {
			if n, err := strconv.Atoi(k.Name); err == nil {
				last = max(last, n)
			}
		}
		key, err := freshKey(last + 1)
		return append([]apiserverv1.Key{key}, keys...), err
	})
}

// DropOldKeys keeps the first key alone: nothing that the others encrypted may
// be left.
func DropOldKeys(file string) error {
	return change(file, func(keys []apiserverv1.Key) ([]apiserverv1.Key, error) { return keys[:1], nil })
}

// Resources are the resources that the configuration names, as "resource" or
// "resource.group".
func Resources(file string) ([]string, error) {
	config, err := read(file)
	if err != nil {
		return nil, err
	}
	var out []string
	for i := range config.Resources {
		out = append(out, config.Resources[i].Resources...)
	}
	return out, nil
}

func change(file string, keys func([]apiserverv1.Key) ([]apiserverv1.Key, error)) error {
	config, err := read(file)
	if err != nil {
		return err
	}
	if len(config.Resources) != 1 || len(config.Resources[0].Providers) == 0 || config.Resources[0].Providers[0].Secretbox == nil ||
		len(config.Resources[0].Providers[0].Secretbox.Keys) == 0 {
		return fmt.Errorf("changing the keys of %s: it is not as berth wrote it (secretbox first); change it by hand", file)
	}
	box := config.Resources[0].Providers[0].Secretbox
	if box.Keys, err = keys(box.Keys); err != nil {
		return err
	}
	return write(file, config)
}

func read(file string) (*apiserverv1.EncryptionConfiguration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the encryption configuration: %w", err)
	}
	var config apiserverv1.EncryptionConfiguration
	// The parser's own error could quote a key.
	if yaml.UnmarshalStrict(data, &config) != nil {
		return nil, fmt.Errorf("reading the encryption configuration: %s is no EncryptionConfiguration in YAML", file)
	}
	return &config, nil
}

func freshKey(number int) (apiserverv1.Key, error) {
	var key [keyBytes]byte
	if _, err := rand.Read(key[:]); err != nil {
		return apiserverv1.Key{}, fmt.Errorf("making an encryption key: %w", err)
	}
	return apiserverv1.Key{Name: strconv.Itoa(number), Secret: base64.StdEncoding.EncodeToString(key[:])}, nil
}

// write replaces the file as a whole, readable by its owner alone and on disk
// before it counts: without its key the Secrets are lost.
func write(file string, config *apiserverv1.EncryptionConfiguration) error {
	data, err := yaml.Marshal(config)
	if err != nil {
		return fmt.Errorf("encoding the encryption configuration: %w", err)
	}
	f, err := os.OpenFile(file+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("writing the encryption configuration: %w", err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("writing the encryption configuration: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("writing the encryption configuration: %w", err)
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return fmt.Errorf("writing the encryption configuration: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}
