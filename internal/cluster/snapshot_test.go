package cluster

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/store"
	"github.com/berth-dev/berth/internal/pki"
	"github.com/berth-dev/berth/internal/snapshot"
)

// dataDir makes a data directory with certificates for an address, settings and
// an open store.
func dataDir(t *testing.T, ip string) (*Config, *store.Store) {
	t.Helper()
	dir, err := os.MkdirTemp("", "bd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &Config{DataDir: dir, NodeIP: ip, Settings: Settings{NodeName: "a", ServiceCIDR: "10.96.0.0/16", ClusterCIDR: "10.244.0.0/16",
		ClusterDomain: "cluster.local", Ports: PortsFrom(7000)}}
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.certificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	s, err := store.Start(t.Context(), store.Config{DataDir: c.Path("etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if _, err := s.Client().Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	return c, s
}

// TestScheduleOutlivesFailures: a schedule whose key is missing says so by an event
// and in the status, saves as soon as the key is there, and keeps as many as it
// was told, but no file of anybody else.
func TestScheduleOutlivesFailures(t *testing.T) {
	c, s := dataDir(t, "192.0.2.1")
	client := fake.NewSimpleClientset()
	reasons := make(chan string, 100)
	client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		reasons <- a.(clienttesting.CreateAction).GetObject().(*v1.Event).Reason
		return false, nil, nil
	})
	c.Snapshots = Snapshots{Every: 50 * time.Millisecond, Keep: 2, Dir: c.Path("out"), KeyFile: c.Path("key"), Version: "v1"}
	turns := make(chan turn, 1000)
	u := &up{Config: c, store: s, client: client}
	u.log = slog.New(logged{slog.DiscardHandler, u, turns})
	u.serverChoices.Store(&api.Options{EncryptionConfig: c.encryptionFile()})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- u.scheduleSnapshots(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if got := <-reasons; got != "SnapshotFailed" {
		t.Fatalf("event %s", got)
	}
	foreign, err := snapshot.Save(t.Context(), snapshot.Origin{Header: c.snapshotHeader("v1"), Store: u.openStore},
		snapshot.Request{Dir: c.Path("out"), Name: "by-hand", Keys: snapshot.NoKeys(), Now: time.Unix(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := snapshot.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Snapshots.KeyFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for <-reasons != "SnapshotSaved" {
	}
	for (<-turns).message != "saved a snapshot" {
	}
	// The turn after that begins with the status of the one before.
	if p := (<-turns).status; p.Failures != 0 || p.LastFile == "" {
		t.Errorf("status: %+v", p)
	}
	ours, err := u.ourScheduled()
	if err != nil || len(ours) == 0 || len(ours) > 2 || ours[0].Header.Sealed != snapshot.SealedByKey {
		t.Errorf("scheduled: %+v, %v", ours, err)
	}
	if _, err := os.Stat(foreign.File); err != nil {
		t.Errorf("the file that a person made: %v", err)
	}
}

// turn is what a turn of the schedule logged, and the status while it did.
type turn struct {
	message string
	status  snapshot.Progress
}

// logged tells each turn of the schedule.
type logged struct {
	slog.Handler
	up *up
	to chan<- turn
}

func (l logged) Enabled(context.Context, slog.Level) bool { return true }

func (l logged) Handle(_ context.Context, r slog.Record) error {
	if p := l.up.snapshots.Load(); p != nil {
		select {
		case l.to <- turn{r.Message, *p}:
		default: // the test has ended, or has many of them to read yet
		}
	}
	return nil
}

// TestRestoreOnAnotherHost: a stopped data directory is saved and restored to a
// host with another address and node name. CAs are the same, what names the
// address is made again, and the settings have the new name.
func TestRestoreOnAnotherHost(t *testing.T) {
	c, s := dataDir(t, "192.0.2.1")
	s.Close()
	e, err := SaveSnapshot(t.Context(), c.DataDir, "v1", snapshot.Request{Dir: c.Path("out"), Keys: snapshot.NoKeys(), Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "bd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o := RestoreOptions{File: e.File, DataDir: dir, Keys: snapshot.NoKeys(), NodeName: "b", Now: time.Now()}
	no := errors.New("no")
	o.Confirm = func(*snapshot.Plan) error { return no }
	if _, err := RestoreSnapshot(o); !errors.Is(err, no) || snapshot.HasState(dir) {
		t.Fatalf("a restore that was not agreed to: %v", err)
	}
	o.Confirm = func(*snapshot.Plan) error { return nil }
	if _, err := RestoreSnapshot(o); err != nil {
		t.Fatal(err)
	}
	there := &Config{DataDir: dir, NodeIP: "192.0.2.9"}
	if there.Settings, err = there.stored(); err != nil || there.NodeName != "b" || there.Ports != c.Ports {
		t.Fatalf("%+v, %v", there.Settings, err)
	}
	files, wrote, err := there.certificates(time.Now())
	if err != nil || wrote == 0 {
		t.Fatalf("%d certificates made again, %v", wrote, err)
	}
	cert, err := pki.ReadCertificate(files.API.Cert)
	if err != nil || cert.VerifyHostname("192.0.2.9") != nil || cert.VerifyHostname("b") != nil {
		t.Errorf("the API server's certificate: %v, %v", cert.IPAddresses, err)
	}
	for _, name := range []string{"ca.crt", "ca.key", "sa.key", "agent-ca.crt"} {
		old, err := os.ReadFile(c.Path("pki", name))
		if err != nil {
			t.Fatal(err)
		}
		if now, err := os.ReadFile(there.Path("pki", name)); err != nil || string(now) != string(old) {
			t.Errorf("%s differs (%v)", name, err)
		}
	}
	if _, err := RestoreSnapshot(o); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("over a cluster: %v", err)
	}
	release, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	o.Force = true
	if _, err := RestoreSnapshot(o); err == nil || !strings.Contains(err.Error(), "is running") {
		t.Errorf("under a running cluster: %v", err)
	}
}

// TestPendingRestoreIsFinished: whatever reads a data directory next ends a restore
// that was left in the middle, and not while the restore still runs.
func TestPendingRestoreIsFinished(t *testing.T) {
	c := &Config{DataDir: t.TempDir()}
	staged := c.Path("restore.staged", "pki")
	if err := os.MkdirAll(staged, 0o700); err != nil {
		t.Fatal(err)
	}
	release, err := lock(c.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.stored(); err == nil || !strings.Contains(err.Error(), "under way") {
		t.Errorf("while it runs: %v", err)
	}
	release()
	if _, err := c.stored(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(staged)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was prepared is there: %v", err)
	}
}

func TestSchedulesThatCannotWork(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	text, _, err := snapshot.NewKey()
	if err == nil {
		err = os.WriteFile(key, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		s    Snapshots
		want string
	}{
		"none":             {Snapshots{Keep: 5}, ""},
		"good":             {Snapshots{Every: time.Hour, Keep: 5, KeyFile: key}, ""},
		"no interval":      {Snapshots{Keep: 5, KeyFile: key}, "--snapshot-every"},
		"too often":        {Snapshots{Every: time.Second, Keep: 5, KeyFile: key}, "at least"},
		"keeps none":       {Snapshots{Every: time.Hour, KeyFile: key}, "--snapshot-keep"},
		"no seal":          {Snapshots{Every: time.Hour, Keep: 5}, "keygen"},
		"two seals":        {Snapshots{Every: time.Hour, Keep: 5, KeyFile: key, Unsealed: true}, "one of"},
		"key is not there": {Snapshots{Every: time.Hour, Keep: 5, KeyFile: key + "x"}, "no such file"},
		"S3":               {Snapshots{Every: time.Hour, Keep: 5, KeyFile: key, Dir: "s3://b"}, "yet"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := &Config{DataDir: "/d", Snapshots: c.s}
			if err := cfg.validateSnapshots(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
