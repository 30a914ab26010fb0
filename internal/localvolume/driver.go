package localvolume

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/keymutex"
)

// Config is what the driver works with; all fields but Version are required.
type Config struct {
	// Dir holds the volumes, and nothing else.
	Dir string
	// Node is the node's id and its value of TopologyKey: the Node's name.
	Node string
	// Version is told to who asks.
	Version string
	Log     *slog.Logger
}

// Driver is the CSI driver of one node. It serves the identity, controller and
// node services of CSI; make it with Open.
type Driver struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedControllerServer
	spec.UnimplementedNodeServer

	cfg   Config
	quota limiter
	// locks serialize the calls about one volume or snapshot. room is held while
	// space is promised, inside of them.
	locks keymutex.KeyMutex
	room  sync.Mutex
	dirty chan struct{}
	// enforces is whether directories are held to their size here.
	enforces bool
	// sizes are the last measures of directories without a quota.
	sizes measures
}

// The folders below the driver's directory.
var folders = []string{"volumes", "snapshots", "making", "trash"}

// Open takes a directory for volumes, makes it if it is not there, and puts
// what a crash left unfinished into the trash.
func Open(cfg Config) (*Driver, error) {
	if cfg.Dir == "" || cfg.Node == "" || cfg.Log == nil {
		return nil, errors.New("configuring local volumes: Dir, Node and Log are required")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("opening the directory of local volumes: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the directory of local volumes: %w", err)
	}
	// Everybody may write into a volume: no one may come near it another way.
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the directory of local volumes: %w", err)
	}
	if cfg.Dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("opening the directory of local volumes: %w", err)
	}
	d := &Driver{cfg: cfg, quota: projectQuota{}, locks: keymutex.NewHashed(64), dirty: make(chan struct{}, 1)}
	for _, f := range folders {
		if err := os.MkdirAll(d.path(f), 0o700); err != nil {
			return nil, fmt.Errorf("opening the directory of local volumes: %w", err)
		}
	}
	unfinished, err := os.ReadDir(d.path("making"))
	if err != nil {
		return nil, fmt.Errorf("opening the directory of local volumes: %w", err)
	}
	for _, e := range unfinished {
		if err := d.discard(d.path("making", e.Name())); err != nil {
			return nil, fmt.Errorf("discarding the unfinished volume %s: %w", e.Name(), err)
		}
	}
	d.enforces = d.quota.works(cfg.Dir)
	return d, nil
}

func (d *Driver) path(parts ...string) string {
	return filepath.Join(append([]string{d.cfg.Dir}, parts...)...)
}

// Enforces says whether the kernel holds volumes of kind Directory to their
// size on this node.
func (d *Driver) Enforces() bool { return d.enforces }

// Run serves the driver on socket and registers it with the agent whose
// directory of registration sockets is plugins, until ctx ends. Volumes that
// are in use stay so.
func (d *Driver) Run(ctx context.Context, socket, plugins string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { d.clean(ctx); return nil })
	group.Go(func() error {
		return serve(ctx, socket, func(s *grpc.Server) {
			spec.RegisterIdentityServer(s, d)
			spec.RegisterControllerServer(s, d)
			spec.RegisterNodeServer(s, d)
		})
	})
	group.Go(func() error {
		return serve(ctx, filepath.Join(plugins, Name+"-reg.sock"), func(s *grpc.Server) {
			registration.RegisterRegistrationServer(s, registrar{endpoint: socket, log: d.cfg.Log})
		})
	})
	return group.Wait()
}

// serve answers on a socket that only root may open, until ctx ends.
func serve(ctx context.Context, socket string, register func(*grpc.Server)) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return fmt.Errorf("serving local volumes: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("serving local volumes: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("serving local volumes: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		_ = listener.Close()
		return fmt.Errorf("serving local volumes: %w", err)
	}
	s := grpc.NewServer()
	register(s)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		s.Stop()
	}()
	err = s.Serve(listener)
	if ctx.Err() != nil {
		err = nil
	}
	if err == nil {
		<-stopped
	}
	return err
}

// registrar tells the agent of the driver.
type registrar struct {
	registration.UnimplementedRegistrationServer
	endpoint string
	log      *slog.Logger
}

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: Name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}},
		nil
}

func (r registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	if !s.PluginRegistered {
		r.log.Warn("the agent did not take the driver of local volumes; it tries again", "err", s.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// volumes are the records of all volumes, or of all snapshots.
func (d *Driver) records(folder string) ([]*record, error) {
	return list(d.path(folder), func(err error) { d.cfg.Log.Error("reading the record of a local volume; it is left alone", "err", err) })
}

// space is what may still be promised here.
//
// A tenth of the filesystem, at most 1 GiB, is no one's: a volume that fills up
// must not take the last byte from the node itself. Where quotas hold, volumes
// may not be promised what others were and did not use yet.
func (d *Driver) space() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.cfg.Dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: d.cfg.Dir, Err: err}
	}
	free := int64(st.Bavail)*st.Bsize - min(int64(st.Blocks)*st.Bsize/10, 1<<30)
	if !d.enforces {
		return max(free, 0), nil
	}
	for _, folder := range []string{"volumes", "making"} {
		all, err := d.records(folder)
		if err != nil {
			return 0, err
		}
		for _, r := range all {
			if r.Project == 0 {
				continue
			}
			used, err := d.quota.used(d.cfg.Dir, r.Project)
			if err != nil {
				return 0, fmt.Errorf("reading the quota of volume %s: %w", r.ID, err)
			}
			free -= max(r.Bytes-used, 0)
		}
	}
	return max(free, 0), nil
}

// project finds a project id that no volume has.
func (d *Driver) project(id string) (uint32, error) {
	taken := map[uint32]bool{}
	for _, folder := range []string{"volumes", "making", "trash"} {
		entries, err := os.ReadDir(d.path(folder))
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			if r, err := readAny(d.path(folder, e.Name())); err == nil {
				taken[r.Project] = true
			}
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	for n := h.Sum32(); ; n++ {
		if p := firstProject | n&(firstProject-1); !taken[p] {
			return p, nil
		}
	}
}

func now() time.Time { return time.Now().UTC().Truncate(time.Second) }
