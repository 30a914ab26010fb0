package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/encryption"
)

// AddServerFlags adds the flags of the API server: admission, audit,
// authentication, authorization and encryption.
func (c *Config) AddServerFlags(f *pflag.FlagSet) {
	c.APIServer = api.NewOptions()
	c.APIServer.AddFlags(f)
	f.Lookup("audit-log-path").Usage = "file of the audit log, - for standard output, or empty for none (default: logs/audit.log in the " +
		"data directory)"
}

// encryptionFile holds the keys of a cluster that brought none. It lies with
// the keys of the control plane: servers of one cluster share it.
func (c *Config) encryptionFile() string { return c.Path("pki", "encryption.yaml") }

// serverOptions are the API server's, with the places in the data directory
// filled in. It is called before the store starts: a store that is empty gets a
// key for its Secrets, and one from before stays as it is.
func (c *Config) serverOptions() (*api.Options, error) {
	if c.APIServer == nil {
		c.APIServer = api.NewOptions()
	}
	o := *c.APIServer
	if o.Audit.LogOptions.Path == api.AuditLogDefault {
		audit := *o.Audit
		audit.LogOptions.Path = c.Path("logs", "audit.log")
		o.Audit = &audit
	}
	if o.EncryptionConfig != "" {
		return &o, nil
	}
	file := c.encryptionFile()
	_, err := os.Stat(file)
	switch {
	case err == nil:
		o.EncryptionConfig = file
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("looking for the encryption keys: %w", err)
	case len(c.EtcdServers) == 0 && isEmpty(c.Path("etcd")):
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return nil, fmt.Errorf("making the encryption keys: %w", err)
		}
		if err := encryption.Create(file); err != nil {
			return nil, err
		}
		o.EncryptionConfig = file
	}
	return &o, nil
}

// isEmpty says whether a directory holds nothing or is not there.
func isEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0
}

// Rotation is what a rotation of the encryption keys did.
type Rotation struct {
	// Objects is how many were written again.
	Objects int `json:"objects"`
	// File holds the keys.
	File string `json:"file"`
	// NewKey is false where the administrator's own configuration is used: its
	// keys are the administrator's.
	NewKey bool `json:"newKey"`
	// Error says why it ended early; what was written stays readable.
	Error string `json:"error,omitempty"`
}

// rotate makes a new key if the keys are ours, writes all objects under it, and
// then forgets the old keys.
func (u *up) rotate(ctx context.Context, options *api.Options) (Rotation, error) {
	r := Rotation{File: options.EncryptionConfig, NewKey: options.EncryptionConfig == u.encryptionFile()}
	if r.NewKey && len(u.EtcdServers) > 0 {
		return r, errors.New("servers that share an etcd must change their keys one after the other: see \"Keys of several servers\" in " +
			"docs/security.md")
	}
	if r.NewKey {
		if err := encryption.AddKey(r.File); err != nil {
			return r, err
		}
	}
	var err error
	if r.Objects, err = u.api.Reencrypt(ctx); err != nil || !r.NewKey {
		return r, err
	}
	return r, encryption.DropOldKeys(r.File)
}

// serveRotation answers `berth secrets rotate` on the control socket.
func (u *up) serveRotation(mux *http.ServeMux) {
	mux.HandleFunc("POST /secrets/rotate", func(w http.ResponseWriter, r *http.Request) {
		var done Rotation
		err := errors.New("this node runs no API server, or it has not started yet: rotate on a server")
		if options := u.serverChoices.Load(); options != nil {
			done, err = u.rotate(r.Context(), options)
		}
		if err != nil {
			done.Error = err.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(done); err != nil {
			u.log.Debug("answering a rotation", "err", err)
		}
	})
}

// RotateSecrets asks the cluster on dataDir to rotate its keys and waits for
// the end.
func RotateSecrets(ctx context.Context, dataDir string) (Rotation, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", ControlSocket(dataDir))
	}}}
	defer client.CloseIdleConnections()
	var done Rotation
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://berth/secrets/rotate", nil)
	if err != nil {
		return done, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return done, fmt.Errorf("asking the cluster on %s: %w", dataDir, err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&done); err != nil {
		return done, fmt.Errorf("asking the cluster on %s: %w", dataDir, err)
	}
	if done.Error != "" {
		return done, fmt.Errorf("rotating the keys after %d objects: %s", done.Objects, done.Error)
	}
	return done, nil
}
