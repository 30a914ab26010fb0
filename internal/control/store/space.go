package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How the room of the embedded database is shared out. etcd refuses every write
// but deletes when the file reaches its quota, until someone compacts,
// defragments and disarms an alarm: nodes' Leases end and the cluster is lost.
// So a tenth of the quota is kept back: beyond it new objects and large changes
// are refused, Leases and what deletes take are not.
const (
	// DefaultQuota is the size the database may have, in bytes.
	DefaultQuota = 8 << 30
	warnPercent  = 80
	fullPercent  = 90
	filePercent  = 95
	// smallChange is the size up to which objects may be changed in a full
	// database: to mark one for deletion, remove a finalizer, or report a
	// status.
	smallChange = 64 << 10
	// smallLease is the largest Lease a full database takes: nodes' are some
	// hundred bytes.
	smallLease = 4 << 10
	// tidyPause is the shortest time between two attempts to make room.
	tidyPause = time.Second
	// tidyTimeout bounds one attempt; a database of gigabytes takes minutes to
	// defragment.
	tidyTimeout = 10 * time.Minute
)

// Usage is how much of its room the database takes.
type Usage struct {
	Size  int64 `json:"size"`  // bytes of the file
	InUse int64 `json:"inUse"` // bytes of it that hold something
	Quota int64 `json:"quota"` // bytes
}

// Warn says that most of the quota is taken.
func (u Usage) Warn() bool { return u.Quota > 0 && u.InUse*100 >= u.Quota*warnPercent }

// Full says that new objects are refused: because of what is in use, or because
// the file has grown so far that etcd itself is about to refuse.
func (u Usage) Full() bool {
	return u.Quota > 0 && (u.InUse*100 >= u.Quota*fullPercent || u.Size*100 >= u.Quota*filePercent)
}

// scattered says that the file is near its quota and some of it is empty:
// defragmenting makes room.
func (u Usage) scattered() bool {
	return u.Size*100 >= u.Quota*fullPercent && u.InUse*100 < u.Size*fullPercent
}

func (u Usage) String() string {
	return fmt.Sprintf("%d of %d MiB in use (file %d MiB)", u.InUse>>20, u.Quota>>20, u.Size>>20)
}

// FullError says that the database takes no new objects.
type FullError struct{ Usage Usage }

func (e *FullError) Error() string {
	return fmt.Sprintf("the store is full: %s, and the rest is kept for Leases and deletes. Delete objects that are not needed "+
		"(kubectl get events,configmaps,secrets -A); room is made at once, without a restart", e.Usage)
}

// Status is the answer API clients get.
func (e *FullError) Status() metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage",
		Message: e.Error()}
}

var _ apierrors.APIStatus = &FullError{}

// put is one write of a request.
type put struct {
	key    string
	size   int
	create bool // only if the key does not exist
}

// admits says whether a write may use the room that is left.
func admits(u Usage, puts []put) error {
	if !u.Full() {
		return nil
	}
	for _, p := range puts {
		switch {
		case !strings.HasPrefix(p.key, "/registry/"): // the compactor's and etcd's own
		case ownLease(p.key) && p.size <= smallLease:
		case !p.create && p.size <= smallChange:
		default:
			return &FullError{Usage: u}
		}
	}
	return nil
}

// ownLease says whether a key is a Lease that the cluster itself lives by,
// which users cannot make.
func ownLease(key string) bool {
	return strings.HasPrefix(key, "/registry/leases/kube-node-lease/") || strings.HasPrefix(key, "/registry/leases/kube-system/") ||
		strings.HasPrefix(key, "/registry/masterleases/")
}

// putsOf are the writes of a request if its conditions hold.
func putsOf(request any) (out []put) {
	switch r := request.(type) {
	case *pb.PutRequest:
		out = append(out, put{key: string(r.Key), size: len(r.Value)})
	case *pb.TxnRequest:
		missing := map[string]bool{}
		for _, c := range r.Compare {
			if c.Target == pb.Compare_MOD && c.Result == pb.Compare_EQUAL && c.GetModRevision() == 0 {
				missing[string(c.Key)] = true
			}
		}
		for _, op := range r.Success {
			if p := op.GetRequestPut(); p != nil {
				out = append(out, put{key: string(p.Key), size: len(p.Value), create: missing[string(p.Key)]})
			}
		}
	}
	return out
}

// space watches over the room of the embedded database. Every write passes by
// it, so it needs no timer to look at sizes.
type space struct {
	usage   func() Usage
	compact func(context.Context) error
	defrag  func() error
	disarm  func(context.Context) error
	log     *slog.Logger
	changed func(Usage) // may be nil
	wake    chan struct{}
	warned  atomic.Bool
	// pending are the bytes let through since the sizes last changed: etcd
	// counts them when it commits, ten times a second.
	pending  atomic.Int64
	lastSeen atomic.Int64
}

// admitWrite is asked before each write.
func (s *space) admitWrite(request any) error {
	u, puts := s.usage(), putsOf(request)
	if seen := u.Size<<1 ^ u.InUse; s.lastSeen.Swap(seen) != seen {
		s.pending.Store(0)
	}
	waiting := s.pending.Load()
	u.Size, u.InUse = u.Size+waiting, u.InUse+waiting
	if u.Warn() || s.warned.Load() || u.Size*100 >= u.Quota*fullPercent {
		s.trigger()
	}
	if err := admits(u, puts); err != nil {
		return err
	}
	for _, p := range puts {
		s.pending.Add(int64(p.size))
	}
	return nil
}

func (s *space) trigger() {
	select {
	case s.wake <- struct{}{}:
	default: // it is about to look
	}
}

// run makes room whenever there is little, until ctx ends.
func (s *space) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		bounded, cancel := context.WithTimeout(ctx, tidyTimeout)
		err := s.compactAndDefrag(bounded)
		cancel()
		if err != nil && ctx.Err() == nil {
			s.log.Error("making room in the store", "err", err, "usage", s.usage().String())
		}
		s.report()
		pause := time.NewTimer(tidyPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// compactAndDefrag compacts old revisions, defragments the file, and disarms
// etcd's alarm once there is space.
func (s *space) compactAndDefrag(ctx context.Context) error {
	u := s.usage()
	near := u.Size*100 >= u.Quota*fullPercent
	if !u.Full() && !near {
		return nil
	}
	errs := s.compact(ctx)
	if u = s.usage(); u.scattered() {
		if err := s.defrag(); err != nil {
			return errors.Join(errs, fmt.Errorf("defragmenting: %w", err))
		}
		u = s.usage()
		s.log.Info("defragmented the store", "usage", u.String())
	}
	if u.Size < u.Quota {
		errs = errors.Join(errs, s.disarm(ctx))
	}
	return errs
}

// report tells when the store gets short of room, and when no longer.
func (s *space) report() {
	u := s.usage()
	if warn := u.Warn(); warn != s.warned.Swap(warn) {
		if warn {
			s.log.Warn("the store is nearly full: at 90 % of its quota it takes no new objects", "usage", u.String())
		} else {
			s.log.Info("the store has room again", "usage", u.String())
		}
		if s.changed != nil {
			s.changed(u)
		}
	}
}

// intercept judges what comes over the socket.
func (s *space) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := s.admitWrite(request); err != nil {
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	}
	return next(ctx, request)
}

// guarded judges what comes from this process.
type guarded struct {
	pb.KVServer
	space *space
}

func (g guarded) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := g.space.admitWrite(r); err != nil {
		return nil, err
	}
	return g.KVServer.Put(ctx, r)
}

func (g guarded) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := g.space.admitWrite(r); err != nil {
		return nil, err
	}
	return g.KVServer.Txn(ctx, r)
}

// compactNow drops all revisions but the current one, and waits until they are
// gone. Watchers that are behind start again.
func compactNow(client *clientv3.Client) func(context.Context) error {
	return func(ctx context.Context) error {
		now, err := client.Get(ctx, "/registry/health", clientv3.WithCountOnly())
		if err != nil {
			return fmt.Errorf("reading the revision: %w", err)
		}
		_, err = client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
		if err != nil && !strings.Contains(err.Error(), "has been compacted") {
			return fmt.Errorf("compacting: %w", err)
		}
		return nil
	}
}

// disarmAll ends etcd's alarms about space.
func disarmAll(client *clientv3.Client) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := client.AlarmList(ctx)
		if err != nil {
			return fmt.Errorf("listing alarms: %w", err)
		}
		for _, a := range list.Alarms {
			if a.Alarm != pb.AlarmType_NOSPACE {
				continue
			}
			if _, err := client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: a.MemberID, Alarm: a.Alarm}); err != nil {
				return fmt.Errorf("disarming the alarm about space: %w", err)
			}
		}
		return nil
	}
}
