package store

import (
	"cmp"
	"context"
	"errors"
	"expvar"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/berth-dev/berth/internal/logfile"
)

const (
	// tick and election decide how long a lone member waits before it elects
	// itself unless elect is faster: between one and five ticks. Nothing else
	// depends on them, since there is no other member to send heartbeats to;
	// but each tick is a wake-up, so they are not too short either.
	tick     = 40 * time.Millisecond
	election = 5 * tick
	// electEvery is how often a starting member is told to lead, until it does.
	electEvery = 3 * time.Millisecond

	// A lone member needs the raft log only to recover from a crash, so it
	// keeps few entries in memory and replays few at start.
	snapshotEvery   = 5000
	snapshotCatchUp = 200

	batchInterval = 100 * time.Millisecond
	batchLimit    = 1000

	maxRequestBytes = 3 << 20 // objects are limited to this by the API server too
	maxTxnOps       = 512
	defragAfterMB   = 256

	// minFreeBytes is what etcd needs to start at all: it preallocates a log
	// segment of 64 MB and another one soon after.
	minFreeBytes = 160 << 20

	// startTimeout bounds log replay; a healthy start takes well under a second.
	startTimeout = 3 * time.Minute

	// maxSocketPath is the kernel's limit on unix socket addresses, less the
	// terminating zero.
	maxSocketPath = 107
)

// embedded is an etcd server in this process. It owns the data directory's
// lock for as long as it runs.
type embedded struct {
	etcd      *embed.Etcd
	clientURL string
	lock      *os.File
	log       *zap.Logger
	socketDir string // "" unless the sockets had to live outside the data directory
	space     *space
	running   atomic.Pointer[etcdserver.EtcdServer]
	inProcess *clientv3.Client
	stopTidy  context.CancelFunc
	tidied    chan struct{} // closed when the last tidying ended
	closing   sync.Once
	failure   *failure
	over      chan struct{} // closed when etcd stopped or failed
}

// startEmbedded takes the directory, starts etcd in it and waits for it to
// elect itself.
func startEmbedded(ctx context.Context, cfg Config) (_ *embedded, err error) {
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("creating data directory: %w", err)
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	e := &embedded{failure: newFailure(), over: make(chan struct{}), space: &space{log: cfg.Log, changed: cfg.SpaceChanged,
		wake: make(chan struct{}, 1)}}
	if cfg.Quota == 0 {
		cfg.Quota = DefaultQuota
	}
	e.space.usage = func() Usage {
		u := Usage{Quota: cfg.Quota}
		if server := e.running.Load(); server != nil { // until then nothing is known
			u.Size, u.InUse = server.Backend().Size(), server.Backend().SizeInUse()
		}
		return u
	}
	if e.lock, err = lockDir(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.release()
		}
	}()
	if err := checkFormat(dir); err != nil {
		return nil, err
	}
	if err := checkSpace(dir); err != nil {
		return nil, err
	}
	conf, err := e.configure(dir, cfg)
	if err != nil {
		return nil, err
	}
	if e.etcd, err = startGuarded(conf); err != nil {
		return nil, err
	}
	if err := e.waitReady(ctx); err != nil {
		e.etcd.Close()
		return nil, err
	}
	if err := writeFormat(dir); err != nil {
		e.etcd.Close()
		return nil, err
	}
	e.failure.contain()
	go func() {
		select {
		case <-e.etcd.Server.StopNotify():
		case <-e.failure.happened:
		}
		close(e.over)
	}()
	e.watchSpace()
	return e, nil
}

// watchSpace begins to look after the room of the database, at once: the last
// process may have left it full.
func (e *embedded) watchSpace() {
	server := e.etcd.Server
	e.running.Store(server)
	e.inProcess = v3client.New(server)
	kv := guarded{v3rpc.NewQuotaKVServer(server), e.space}
	e.inProcess.KV = clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(kv), e.inProcess)
	e.space.compact, e.space.defrag, e.space.disarm = compactNow(e.inProcess), server.Defragment, disarmAll(e.inProcess)
	var ctx context.Context
	ctx, e.stopTidy = context.WithCancel(context.Background())
	e.tidied = make(chan struct{})
	go func() {
		defer close(e.tidied)
		e.space.run(ctx)
	}()
	e.space.trigger()
}

// configure translates our needs into etcd's configuration.
func (e *embedded) configure(dir string, cfg Config) (*embed.Config, error) {
	sockets, err := e.socketDirectory(dir)
	if err != nil {
		return nil, err
	}
	client := url.URL{Scheme: "unix", Path: filepath.Join(sockets, "client.sock")}
	peer := url.URL{Scheme: "unix", Path: filepath.Join(sockets, "peer.sock")}
	e.clientURL = client.String()

	logFile := cfg.LogFile
	if logFile == "" {
		logFile = filepath.Join(dir, "etcd.log")
	}
	if e.log, err = openLog(logFile, e.failure); err != nil {
		return nil, err
	}

	c := embed.NewConfig()
	// A watch that asked for bookmarks gets one this often while nothing
	// happens, as from a watch cache.
	c.WatchProgressNotifyInterval = time.Minute
	c.Name = "berth"
	c.Dir = filepath.Join(dir, "member-data")
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.InitialClusterToken = "berth"
	c.TickMs, c.ElectionMs = uint(tick.Milliseconds()), uint(cmp.Or(cfg.electionTimeout, election).Milliseconds())
	c.SnapshotCount, c.SnapshotCatchUpEntries = snapshotEvery, snapshotCatchUp
	c.BackendBatchInterval, c.BackendBatchLimit = batchInterval, batchLimit
	c.QuotaBackendBytes = cfg.Quota
	c.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainUnaryInterceptor(e.space.intercept)}
	c.MaxRequestBytes = maxRequestBytes
	c.MaxTxnOps = maxTxnOps
	c.BootstrapDefragThresholdMegabytes = defragAfterMB
	// The API server asks for compaction every five minutes (it must know the
	// compacted revision), so etcd's own compactor stays off.
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "0"
	c.UnsafeNoFsync = cfg.NoSync
	c.EnableGRPCGateway = false
	c.Metrics = "basic"
	c.Logger, c.LogLevel = "zap", "warn"
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(e.log)
	return c, nil
}

// socketDirectory is the data directory, or a private temporary one where the
// data directory's name is too long for a socket address.
func (e *embedded) socketDirectory(dir string) (string, error) {
	if len(filepath.Join(dir, "client.sock")) <= maxSocketPath {
		for _, name := range []string{"client.sock", "peer.sock"} {
			// We hold the lock: a socket left here belongs to a dead process.
			if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return "", fmt.Errorf("removing stale socket: %w", err)
			}
		}
		return dir, nil
	}
	short, err := os.MkdirTemp("", "berth-etcd-")
	if err != nil {
		return "", fmt.Errorf("creating socket directory: %w", err)
	}
	e.socketDir = short
	return short, nil
}

// startGuarded turns etcd's fatal log entries during start into errors: the
// library would end the process, which here holds more than etcd.
func startGuarded(conf *embed.Config) (etcd *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			etcd, err = nil, fmt.Errorf("etcd refuses its data: %v", r)
		}
	}()
	etcd, err = embed.StartEtcd(conf)
	if errors.Is(err, syscall.ENOSPC) {
		return nil, fmt.Errorf("no space left on the device: %w", err)
	}
	return etcd, err
}

func (e *embedded) waitReady(ctx context.Context) error {
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	electing := time.NewTicker(electEvery)
	defer electing.Stop()
	for {
		select {
		case <-e.etcd.Server.ReadyNotify():
			return nil
		case <-electing.C:
			if e.elect(ctx) {
				electing.Stop()
			}
		case err := <-e.etcd.Err():
			return fmt.Errorf("serving etcd: %w", err)
		case <-e.etcd.Server.StopNotify():
			return errors.New("etcd stopped while starting; its log says why")
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return fmt.Errorf("etcd is not ready after %s; its log says why", startTimeout)
		}
	}
}

// elect makes the only member of a cluster its leader without waiting for the
// election timeout, and reports whether it is done. It sends the message a
// leader sends to its chosen successor.
func (e *embedded) elect(ctx context.Context) (done bool) {
	server := e.etcd.Server
	if server.Leader() != 0 || len(server.Cluster().Members()) > 1 {
		return true
	}
	self := uint64(server.MemberID())
	if !replayed(self) {
		return false
	}
	err := server.Process(ctx, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), To: &self, From: &self})
	if err != nil {
		e.log.Warn("electing itself", zap.Error(err))
		return true
	}
	return false
}

// replayed says whether a member has applied and acknowledged all that its log
// holds as committed. An election begun from outside before that could ask for
// entries that etcd, which trims its log while it applies it, holds no more. The
// library shows raft's own state of the member started last and of no other.
func replayed(member uint64) bool {
	show, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	status, ok := show().(raft.Status)
	return ok && status.ID == member && status.Applied > 0 && status.Applied >= status.HardState.GetCommit()
}

func (e *embedded) client() *clientv3.Client { return e.inProcess }

func (e *embedded) stopped() <-chan struct{} { return e.over }

func (e *embedded) close() {
	e.closing.Do(func() {
		e.stopTidy()
		if e.failure.err() != nil {
			e.release() // no one waits for what was held in the middle of a write
			return
		}
		<-e.tidied
		e.etcd.Close()
		e.release()
	})
}

// release gives back what startEmbedded took besides etcd itself.
func (e *embedded) release() {
	if e.socketDir != "" {
		os.RemoveAll(e.socketDir)
	}
	if e.log != nil {
		e.log.Sync()
	}
	if e.lock != nil {
		e.lock.Close() // closing drops the lock
	}
}

// openLog gives etcd a quiet logger of its own, with files of bounded size.
// A fatal entry does not end the process, see failure.
func openLog(path string, failure *failure) (*zap.Logger, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("creating etcd log directory: %w", err)
	}
	file, err := logfile.Open(path, logfile.DefaultLimits)
	if err != nil {
		return nil, fmt.Errorf("opening etcd log: %w", err)
	}
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(c), file, zap.NewAtomicLevelAt(zapcore.WarnLevel))
	return zap.New(core, zap.ErrorOutput(file), zap.AddCaller(), zap.AddStacktrace(zapcore.ErrorLevel),
		zap.WithFatalHook(failure), zap.WithPanicHook(failure)), nil
}

// lockDir makes the directory ours until the returned file is closed or the
// process dies.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening lock file: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0)
		return nil, &InUseError{Dir: dir, Holder: string(holder[:n])}
	}
	// Written for the reader of InUseError; losing it loses nothing.
	if err := f.Truncate(0); err == nil {
		fmt.Fprintf(f, "%d", os.Getpid())
	}
	return f, nil
}

func checkSpace(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("asking for free space: %w", err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < minFreeBytes {
		return &NoSpaceError{Dir: dir, Free: free, Need: minFreeBytes}
	}
	return nil
}
