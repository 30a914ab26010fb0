package volume

import (
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watchDir closes done once cond holds, looking again at each change of dir.
func watchDir(t *testing.T, dir string, cond func() bool, done chan struct{}) {
	t.Helper()
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(dir); err != nil {
		t.Fatal(err)
	}
	timeout := time.NewTimer(30 * time.Second)
	go func() {
		defer w.Close()
		defer timeout.Stop()
		for !cond() {
			select {
			case <-w.Events:
			case <-timeout.C:
				t.Error("the change never came")
				close(done)
				return
			}
		}
		close(done)
	}()
}
