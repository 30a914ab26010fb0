package network

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// privateKey is a node's WireGuard key, behind a function: whatever prints it,
// or something that holds it, prints where the function is.
type privateKey struct{ reveal func() wgtypes.Key }

func hide(k wgtypes.Key) privateKey { return privateKey{func() wgtypes.Key { return k }} }

func (k privateKey) public() wgtypes.Key { return k.reveal().PublicKey() }

// loadKey reads the key in a file, as `wg genkey` writes it; the first time it
// makes one. A key that others could read is used, but told of.
func loadKey(file string, log *slog.Logger) (privateKey, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		secret, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			return privateKey{}, fmt.Errorf("making this node's WireGuard key: %w", err)
		}
		return hide(secret), keep(file, hide(secret))
	}
	if err != nil {
		return privateKey{}, fmt.Errorf("reading this node's WireGuard key: %w", err)
	}
	secret, err := wgtypes.ParseKey(strings.TrimSpace(string(data)))
	if err != nil {
		// The library's words could hold what it read.
		return privateKey{}, fmt.Errorf("reading this node's WireGuard key: %s holds no key: remove it, and a new one is made", file)
	}
	st, err := os.Stat(file)
	if err == nil && st.Mode().Perm()&0o077 != 0 {
		log.Warn("this node's WireGuard key could be read by others: remove it and start again for a new one", "file", file, "mode",
			st.Mode().Perm())
		err = os.Chmod(file, 0o600)
	}
	if err != nil {
		return privateKey{}, fmt.Errorf("looking at this node's WireGuard key: %w", err)
	}
	return hide(secret), nil
}

// keep writes a new key so that at any instant there is none or all of it,
// also after the host lost its power.
func keep(file string, k privateKey) error {
	write := func() error {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		tmp := file + ".new"
		if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteString(k.reveal().String() + "\n")
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
		if err := os.Rename(tmp, file); err != nil {
			return err
		}
		dir, err := os.Open(filepath.Dir(file))
		if err != nil {
			return err
		}
		return errors.Join(dir.Sync(), dir.Close())
	}
	if err := write(); err != nil {
		return fmt.Errorf("keeping this node's WireGuard key: %w", err)
	}
	return nil
}
