// Package plugins finds the plugins that register with the node agent through
// sockets in a directory (storage drivers, device plugins, resource drivers)
// and hands each to the part that speaks its type.
package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/controller"
)

// Types of plugins, as they call themselves.
const (
	CSIPlugin    = "CSIPlugin"
	DevicePlugin = "DevicePlugin"
	DRAPlugin    = "DRAPlugin"
)

const (
	infoTimeout   = 10 * time.Second
	notifyTimeout = 5 * time.Second
	firstRetry    = 500 * time.Millisecond
	lastRetry     = 2 * time.Minute
)

// Handler speaks one type of plugin. Register may take long and is called
// again with growing pauses when it fails; Deregister is called when the
// socket is gone.
type Handler interface {
	Register(ctx context.Context, name, endpoint string, versions []string) error
	Deregister(name, endpoint string)
}

// Config configures a Watcher.
type Config struct {
	// Dir is watched with everything below it.
	Dir string
	// Handlers by plugin type.
	Handlers map[string]Handler
	Clock    clock.WithTicker
	Log      *slog.Logger
}

// Run watches until ctx ends. It returns early only when the directory cannot
// be watched at all.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return fmt.Errorf("making the plugin directory: %w", err)
	}
	fsw, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the plugin directory: %w", err)
	}
	defer fsw.Close()
	w := &watcher{cfg: cfg, fsw: fsw, sockets: map[string]*socket{}}
	defer w.stopAll()
	if err := w.scan(ctx, cfg.Dir); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-fsw.Events:
			if !ok {
				return errors.New("watching the plugin directory: the watch ended")
			}
			w.event(ctx, ev)
		case err, ok := <-fsw.Errors:
			if !ok {
				return errors.New("watching the plugin directory: the watch ended")
			}
			// An overflow lost events: look at everything again.
			cfg.Log.Warn("watching the plugin directory", "err", err)
			if err := w.scan(ctx, cfg.Dir); err != nil {
				return err
			}
			w.dropMissing()
		}
	}
}

type watcher struct {
	cfg     Config
	fsw     *fsnotify.Watcher
	sockets map[string]*socket
	wg      sync.WaitGroup
}

// socket is one plugin's socket; its goroutine owns the registration.
type socket struct {
	stop context.CancelFunc
	done chan struct{}
	// inode tells a socket from its successor of the same name.
	inode fs.FileInfo
}

func (w *watcher) scan(ctx context.Context, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("scanning the plugin directory: %w", err)
		}
		if d.IsDir() {
			if path != w.cfg.Dir && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return w.fsw.Add(path)
		}
		w.appeared(ctx, path)
		return nil
	})
}

func (w *watcher) event(ctx context.Context, ev fsnotify.Event) {
	switch {
	case ev.Has(fsnotify.Create):
		if info, err := os.Lstat(ev.Name); err == nil && info.IsDir() {
			if err := w.scan(ctx, ev.Name); err != nil {
				w.cfg.Log.Warn("scanning a plugin directory", "dir", ev.Name, "err", err)
			}
			return
		}
		w.appeared(ctx, ev.Name)
	case ev.Has(fsnotify.Remove), ev.Has(fsnotify.Rename):
		w.vanished(ev.Name)
	}
}

func (w *watcher) appeared(ctx context.Context, path string) {
	if strings.HasPrefix(filepath.Base(path), ".") {
		return
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode()&fs.ModeSocket == 0 {
		return
	}
	if old := w.sockets[path]; old != nil {
		if os.SameFile(old.inode, info) {
			return
		}
		w.vanished(path)
	}
	sctx, stop := context.WithCancel(ctx)
	s := &socket{stop: stop, done: make(chan struct{}), inode: info}
	w.sockets[path] = s
	w.wg.Go(func() {
		defer close(s.done)
		w.serve(sctx, path)
	})
}

func (w *watcher) vanished(path string) {
	for name, s := range w.sockets {
		if name == path || strings.HasPrefix(name, path+string(filepath.Separator)) {
			s.stop()
			delete(w.sockets, name)
		}
	}
}

func (w *watcher) dropMissing() {
	for name := range w.sockets {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			w.vanished(name)
		}
	}
}

func (w *watcher) stopAll() {
	for _, s := range w.sockets {
		s.stop()
	}
	w.wg.Wait()
}

// serve registers the plugin behind a socket, again and again until it
// succeeds, and deregisters it when the socket is gone. When the agent itself
// stops nothing is deregistered: the plugin stays.
func (w *watcher) serve(ctx context.Context, path string) {
	retry := controller.Backoff{First: firstRetry, Most: lastRetry}
	for attempt := 1; ; attempt++ {
		info, err := w.register(ctx, path)
		if err == nil {
			w.cfg.Log.Info("registered plugin", "type", info.Type, "name", info.Name)
			<-ctx.Done()
			if _, serr := os.Lstat(path); serr != nil {
				w.cfg.Handlers[info.Type].Deregister(info.Name, endpointOf(info, path))
				w.cfg.Log.Info("deregistered plugin", "type", info.Type, "name", info.Name)
			}
			return
		}
		if ctx.Err() != nil {
			return
		}
		delay := retry.Delay(attempt)
		w.cfg.Log.Warn("registering plugin", "socket", path, "err", err, "retry", delay)
		t := w.cfg.Clock.NewTimer(delay)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C():
		}
	}
}

func endpointOf(info *registration.PluginInfo, path string) string {
	if info.Endpoint == "" {
		return path
	}
	return info.Endpoint
}

func (w *watcher) register(ctx context.Context, path string) (*registration.PluginInfo, error) {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	defer conn.Close()
	client := registration.NewRegistrationClient(conn)
	ictx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := client.GetInfo(ictx, &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("asking for its info: %w", err)
	}
	h := w.cfg.Handlers[info.Type]
	if h == nil {
		err = fmt.Errorf("plugin type %q is not handled by this node", info.Type)
	} else {
		err = h.Register(ctx, info.Name, endpointOf(info, path), info.SupportedVersions)
	}
	status := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = err.Error()
	}
	nctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if _, nerr := client.NotifyRegistrationStatus(nctx, status); nerr != nil && err == nil {
		// It is registered; a plugin that does not listen will ask again.
		w.cfg.Log.Warn("telling a plugin that it is registered", "name", info.Name, "err", nerr)
	}
	return info, err
}
