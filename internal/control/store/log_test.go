package store

import (
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/internal/testkit/logtest"
)

// TestEtcdLogIsBounded: an etcd that complains without end keeps to four files.
func TestEtcdLogIsBounded(t *testing.T) {
	limits := logtest.Small(t)
	path := filepath.Join(t.TempDir(), "logs", "etcd.log")
	log, err := openLog(path, newFailure())
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		log.Warn(logtest.Line)
	}
	logtest.Full(t, path, limits)
}
