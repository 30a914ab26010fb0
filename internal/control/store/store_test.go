package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func start(t testing.TB, dir string) *Store {
	t.Helper()
	began := time.Now()
	s, err := Start(context.Background(), Config{DataDir: dir})
	if err != nil {
		t.Fatalf("starting store: %v", err)
	}
	t.Logf("etcd accepts writes after %s", time.Since(began).Round(time.Millisecond))
	t.Cleanup(s.Close)
	return s
}

func TestDataSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	if _, err := s.Client().Put(t.Context(), "/a", "1"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = start(t, dir)
	got, err := s.Client().Get(t.Context(), "/a")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" {
		t.Fatalf("after restart: %v, %v", got, err)
	}
}

func TestSocketServesOtherClients(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), strings.Repeat("long/", 30)))
	if err := s.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: s.Transport().ServerList, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Put(t.Context(), "/b", "2"); err != nil {
		t.Fatalf("writing through %v: %v", s.Transport().ServerList, err)
	}
	got, err := s.Client().Get(t.Context(), "/b")
	if err != nil || got.Count != 1 {
		t.Fatalf("in-process client sees %v, %v", got, err)
	}
	// The same store through the external path.
	ext, err := Start(t.Context(), Config{Servers: s.Transport().ServerList})
	if err != nil {
		t.Fatal(err)
	}
	defer ext.Close()
	if got, err := ext.Client().Get(t.Context(), "/b"); err != nil || got.Count != 1 {
		t.Fatalf("external client sees %v, %v", got, err)
	}
}

func TestSecondUserIsRefused(t *testing.T) {
	dir := t.TempDir()
	start(t, dir)
	_, err := Start(t.Context(), Config{DataDir: dir})
	var inUse *InUseError
	if !errors.As(err, &inUse) {
		t.Fatalf("second start: %v, want InUseError", err)
	}
	if !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("error does not name the holder: %v", err)
	}
}

func TestNewerDataIsRefused(t *testing.T) {
	for name, content := range map[string]string{
		"layout": `{"layout":99,"etcd":"3.7.0"}`,
		"etcd":   `{"layout":1,"etcd":"3.99.0"}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, formatFile), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Start(t.Context(), Config{DataDir: dir})
			var newer *NewerDataError
			if !errors.As(err, &newer) {
				t.Fatalf("got %v, want NewerDataError", err)
			}
		})
	}
}

func TestExternalErrors(t *testing.T) {
	if _, err := Start(t.Context(), Config{}); err == nil {
		t.Error("empty config accepted")
	}
	if _, err := Start(t.Context(), Config{Servers: []string{"https://127.0.0.1:1"}, CertFile: "x"}); err == nil ||
		!strings.Contains(err.Error(), "together") {
		t.Errorf("half a key pair: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, Config{Servers: []string{"unix://" + filepath.Join(t.TempDir(), "none")}}); err == nil {
		t.Error("dead server accepted")
	}
}

func BenchmarkStart(b *testing.B) {
	for range b.N {
		s := start(b, b.TempDir())
		b.StopTimer()
		s.Close()
		b.StartTimer()
	}
}

// TestRestartElectsAtOnce: a member elects itself as soon as it has replayed its
// log, however much that is (etcd trims its log while it applies a hundred
// entries and more): the election timeout, here far longer than a test waits,
// has no part in it.
func TestRestartElectsAtOnce(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	written := 0
	for _, upTo := range []int{0, 80, 95, 150, 400, 700} {
		s, err := Start(ctx, Config{DataDir: dir, electionTimeout: 49 * time.Second})
		if err != nil {
			t.Fatalf("after %d writes: %v", written, err)
		}
		for ; written < upTo; written++ {
			if _, err := s.Client().Put(t.Context(), fmt.Sprint("/k/", written), "v"); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.Client().Get(t.Context(), "/k/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || got.Count != int64(written) {
			t.Fatalf("after %d writes: %v, %v", written, got, err)
		}
		s.Close()
	}
}
