package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/berth-dev/berth/internal/control/store"
	"github.com/berth-dev/berth/internal/snapshot"
)

// storeBytes tells the size of the store that a response streams.
const storeBytes = "Berth-Store-Bytes"

// SnapshotReader is what this program can open.
func SnapshotReader() snapshot.Reader {
	return snapshot.Reader{Etcd: store.EtcdVersion, Layout: dataVersion}
}

// SnapshotDir is where snapshots of a data directory go by default.
func SnapshotDir(dataDir string) string { return filepath.Join(dataDir, "snapshots") }

// origin is what a running cluster says of itself for a snapshot.
type origin struct {
	Header         snapshot.Header `json:"header"`
	ProviderConfig string          `json:"providerConfig,omitempty"`
}

// snapshotHeader is what is known before the store is read.
func (c *Config) snapshotHeader(version string) snapshot.Header {
	return snapshot.Header{Cluster: c.Instance(), Node: c.NodeName, Role: string(c.Role), DataDir: c.DataDir, Berth: version,
		Etcd: store.EtcdVersion, Layout: dataVersion}
}

// origin is empty until the API server runs.
func (u *up) origin() (o origin, err error) {
	options := u.serverChoices.Load()
	if options == nil {
		return o, errors.New("this node runs no API server, or it has not started yet: save on a server")
	}
	o.Header = u.snapshotHeader(u.Snapshots.Version)
	if options.EncryptionConfig != u.encryptionFile() {
		o.ProviderConfig = options.EncryptionConfig
	}
	return o, nil
}

// openStore begins a snapshot of the store of this process.
func (u *up) openStore(ctx context.Context) (io.ReadCloser, int64, error) {
	if err := u.store.Failure(); err != nil {
		return nil, 0, fmt.Errorf("the store has failed: %w", err)
	}
	r, err := u.store.Client().SnapshotWithVersion(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("asking the store for a snapshot: %w", err)
	}
	return r.Snapshot, u.store.Usage().Size, nil
}

// serveSnapshots gives `berth snapshot save` what only this process has. Only
// root reaches the socket.
func (u *up) serveSnapshots(mux *http.ServeMux) {
	mux.HandleFunc("GET /snapshot/origin", func(w http.ResponseWriter, _ *http.Request) {
		o, err := u.origin()
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(o); err != nil {
			u.log.Debug("answering a snapshot request", "err", err)
		}
	})
	mux.HandleFunc("GET /snapshot/store", func(w http.ResponseWriter, r *http.Request) {
		if _, err := u.origin(); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		from, size, err := u.openStore(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer from.Close()
		w.Header().Set(storeBytes, strconv.FormatInt(size, 10))
		if _, err := io.Copy(w, from); err != nil {
			u.log.Warn("a snapshot of the store ended early", "err", err)
			panic(http.ErrAbortHandler) // the other side must not take it for whole
		}
	})
}

// SaveSnapshot saves the cluster on dataDir: through its control socket while it
// runs, otherwise by opening its store.
func SaveSnapshot(ctx context.Context, dataDir, version string, r snapshot.Request) (snapshot.Entry, error) {
	cfg := &Config{DataDir: dataDir}
	var err error
	if cfg.Settings, err = cfg.stored(); err != nil {
		return snapshot.Entry{}, err
	}
	switch {
	case cfg.Version == 0:
		return snapshot.Entry{}, fmt.Errorf("%s holds no cluster: give the --data-dir of one", dataDir)
	case !cfg.Role.control():
		return snapshot.Entry{}, fmt.Errorf("%s is a node of %s and has no store: save on that server", dataDir, cfg.ServerURL)
	}
	if r.Name == "" {
		r.Name = snapshot.DefaultName(cfg.NodeName, r.Now)
	}
	if Running(dataDir) != 0 {
		from, err := runningOrigin(ctx, dataDir)
		if err != nil {
			return snapshot.Entry{}, err
		}
		return snapshot.Save(ctx, from, r)
	}
	release, err := lock(dataDir)
	if err != nil {
		return snapshot.Entry{}, err
	}
	defer release()
	return saveStopped(ctx, cfg, version, r)
}

// saveStopped opens the store as a start does, which replays what etcd had logged
// and not yet applied.
func saveStopped(ctx context.Context, cfg *Config, version string, r snapshot.Request) (snapshot.Entry, error) {
	if isEmpty(cfg.Path("etcd", "member-data")) {
		return snapshot.Entry{}, fmt.Errorf("%s holds no store (its cluster is on an external etcd, or never started): start it, and save "+
			"while it runs", cfg.DataDir)
	}
	s, err := store.Start(ctx, store.Config{DataDir: cfg.Path("etcd"), LogFile: cfg.Path("logs", "etcd.log"),
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return snapshot.Entry{}, err
	}
	defer s.Close()
	return snapshot.Save(ctx, snapshot.Origin{Header: cfg.snapshotHeader(version),
		Store: func(ctx context.Context) (io.ReadCloser, int64, error) {
			from, err := s.Client().SnapshotWithVersion(ctx)
			if err != nil {
				return nil, 0, fmt.Errorf("reading the store: %w", err)
			}
			return from.Snapshot, s.Usage().Size, nil
		}}, r)
}

// runningOrigin asks the cluster that runs on dataDir.
func runningOrigin(ctx context.Context, dataDir string) (from snapshot.Origin, err error) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", ControlSocket(dataDir))
	}, DisableKeepAlives: true, ResponseHeaderTimeout: time.Minute}}
	get := func(ctx context.Context, path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth/snapshot/"+path, nil)
		if err != nil {
			return nil, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, fmt.Errorf("asking the cluster on %s: %w", dataDir, err)
		}
		if resp.StatusCode != http.StatusOK {
			defer resp.Body.Close()
			said, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
			return nil, fmt.Errorf("asking the cluster on %s: %s", dataDir, said)
		}
		return resp, nil
	}
	resp, err := get(ctx, "origin")
	if err != nil {
		return from, err
	}
	defer resp.Body.Close()
	var o origin
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&o); err != nil {
		return from, fmt.Errorf("asking the cluster on %s: %w", dataDir, err)
	}
	return snapshot.Origin{Header: o.Header, ProviderConfig: o.ProviderConfig,
		Store: func(ctx context.Context) (io.ReadCloser, int64, error) {
			resp, err := get(ctx, "store")
			if err != nil {
				return nil, 0, err
			}
			size, _ := strconv.ParseInt(resp.Header.Get(storeBytes), 10, 64) // it is a bound for free space alone
			return resp.Body, size, nil
		}}, nil
}

// finishRestore ends a restore that was left in the middle.
func (c *Config) finishRestore() error {
	if !snapshot.Pending(c.DataDir) {
		return nil
	}
	release, err := lock(c.DataDir)
	var busy *ErrRunning
	if errors.As(err, &busy) {
		return fmt.Errorf("a restore to %s is under way (process %d): wait for its end", c.DataDir, busy.PID)
	}
	if err != nil {
		return err
	}
	defer release()
	return snapshot.Finish(c.DataDir)
}

// RestoreOptions say what is restored, and to where.
type RestoreOptions struct {
	File, DataDir string
	Keys          snapshot.Keys
	// NodeName is this host's new name in the cluster; empty keeps the old one.
	NodeName string
	// Force moves the state of a cluster that is there aside.
	Force bool
	// Confirm is shown the plan, and its error ends the restore.
	Confirm func(*snapshot.Plan) error
	Now     time.Time
}

// RestoreSnapshot makes a data directory's state from a snapshot.
func RestoreSnapshot(o RestoreOptions) (*snapshot.Plan, error) {
	cfg := &Config{DataDir: o.DataDir}
	if err := cfg.socketsFit(); err != nil {
		return nil, err
	}
	m, settings, err := snapshot.Verify(o.File, o.Keys, SnapshotReader())
	if err != nil {
		return nil, err
	}
	var kept Settings
	if err := json.Unmarshal(settings, &kept); err != nil {
		return nil, fmt.Errorf("reading the settings in %s: %w", o.File, err)
	}
	target, err := cfg.restoreTarget(o, kept)
	if err != nil {
		return nil, err
	}
	plan, err := snapshot.NewPlan(o.File, m, target, o.Now)
	if err != nil {
		return nil, err
	}
	plan.Command = kept.Role.Command()
	if err := o.Confirm(plan); err != nil {
		return plan, err
	}
	if err := os.MkdirAll(o.DataDir, 0o755); err != nil {
		return plan, fmt.Errorf("making the data directory: %w", err)
	}
	release, err := lock(o.DataDir)
	if err != nil {
		return plan, err
	}
	defer release()
	return plan, (&snapshot.Restore{File: o.File, Keys: o.Keys, Reader: SnapshotReader(), DataDir: o.DataDir, Plan: plan,
		PeerSocket: cfg.Path("etcd", "peer.sock"), Settings: func(data []byte) ([]byte, error) { return renameNode(data, o.NodeName) },
	}).Run()
}

// restoreTarget looks at what is there.
func (c *Config) restoreTarget(o RestoreOptions, kept Settings) (t snapshot.Target, err error) {
	t = snapshot.Target{DataDir: c.DataDir, Force: o.Force, NodeName: o.NodeName, RunningPID: Running(c.DataDir)}
	if t.RunningPID != 0 {
		return t, nil
	}
	if err := c.finishRestore(); err != nil {
		return t, err
	}
	t.HasCluster = snapshot.HasState(c.DataDir)
	if t.HasCluster {
		// What is damaged is what a restore replaces: the plan says "unknown".
		if old, err := c.stored(); err == nil {
			t.Node = old.NodeName
		}
		if revision, err := snapshot.Revision(c.Path("etcd", "member-data", "member", "snap", "db")); err == nil {
			t.Revision = revision
		}
	}
	for _, path := range []string{kept.AgentConfig, kept.CredentialProviders, kept.CredentialProviderDir, kept.VolumesDir,
		trimUnix(kept.RuntimeEndpoint)} {
		if _, err := os.Stat(path); path != "" && path != NoVolumes && errors.Is(err, os.ErrNotExist) {
			t.MissingPaths = append(t.MissingPaths, path)
		}
	}
	return t, nil
}

// renameNode gives the host another name in a cluster's settings.
func renameNode(settings []byte, name string) ([]byte, error) {
	if name == "" {
		return settings, nil
	}
	var s Settings
	if err := json.Unmarshal(settings, &s); err != nil {
		return nil, fmt.Errorf("reading the cluster's settings: %w", err)
	}
	s.NodeName = name
	data, err := json.MarshalIndent(s, "", "  ")
	return append(data, '\n'), err
}
