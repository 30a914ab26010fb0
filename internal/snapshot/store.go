package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	etcdsnapshot "go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// spool receives etcd's snapshot: a database and its SHA-256.
type spool struct {
	file *os.File
	all  hash.Hash // of everything
	db   hash.Hash // of all but the last 32 bytes
	tail []byte
	n    int64
}

func (s *spool) Write(p []byte) (int, error) {
	n, err := s.file.Write(p)
	s.n += int64(n)
	s.all.Write(p[:n])
	s.tail = append(s.tail, p[:n]...)
	if over := len(s.tail) - sha256.Size; over > 0 {
		s.db.Write(s.tail[:over])
		s.tail = append(s.tail[:0], s.tail[over:]...)
	}
	return n, err
}

// spoolStore copies etcd's snapshot to a file and checks it.
func spoolStore(ctx context.Context, file string, from io.Reader) (p filePart, err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return p, fmt.Errorf("copying the store: %w", err)
	}
	s := &spool{file: f, all: sha256.New(), db: sha256.New()}
	_, err = io.CopyBuffer(struct{ io.Writer }{s}, &contextReader{ctx, from}, make([]byte, 1<<20))
	if err := errors.Join(err, f.Close()); err != nil {
		return p, fmt.Errorf("copying the store: %w", err)
	}
	if s.n%512 != sha256.Size || !bytes.Equal(s.tail, s.db.Sum(nil)) {
		return p, fmt.Errorf("copying the store: the %d bytes that came do not match etcd's checksum: try again", s.n)
	}
	return filePart{Name: StoreName, Bytes: s.n, SHA256: hex.EncodeToString(s.all.Sum(nil))}, nil
}

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// Revision reads the latest revision of a store that no process has open.
func Revision(db string) (revision int64, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("reading the store %s: it is damaged: %v", db, r)
		}
	}()
	b, err := bolt.Open(db, 0o600, &bolt.Options{ReadOnly: true, Timeout: 5 * time.Second})
	if err != nil {
		return 0, fmt.Errorf("reading the store %s: %w", db, err)
	}
	defer b.Close()
	err = b.View(func(tx *bolt.Tx) error {
		keys, meta := tx.Bucket([]byte("key")), tx.Bucket([]byte("meta"))
		if keys == nil || meta == nil {
			return fmt.Errorf("reading the store %s: it is not etcd's", db)
		}
		last, _ := keys.Cursor().Last()
		// A compaction may have removed the newest key.
		for _, at := range [][]byte{last, meta.Get([]byte("scheduledCompactRev")), meta.Get([]byte("finishedCompactRev"))} {
			if len(at) >= 8 {
				revision = max(revision, int64(binary.BigEndian.Uint64(at)))
			}
		}
		return nil
	})
	return max(revision, 1), err
}

// restoreStore makes the directory of a lone etcd member from etcd's snapshot.
func restoreStore(from, dir, peerSocket string, bump int64) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("making the store: the snapshot's database is damaged: %v", r)
		}
	}()
	m := etcdsnapshot.NewV3(zap.NewNop())
	const name = "berth" // as internal/control/store names the lone member
	peer := "unix://" + peerSocket
	err = m.Restore(etcdsnapshot.RestoreConfig{
		SnapshotPath: from, Name: name, OutputDataDir: dir, PeerURLs: []string{peer}, InitialCluster: name + "=" + peer,
		InitialClusterToken: name, RevisionBump: uint64(bump), MarkCompacted: true,
	})
	if err != nil {
		return fmt.Errorf("making the store: %w", err)
	}
	if _, err := m.Status(filepath.Join(dir, "member", "snap", "db")); err != nil {
		return fmt.Errorf("making the store: checking it: %w", err)
	}
	return nil
}
