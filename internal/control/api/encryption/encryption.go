// Package encryption encrypts objects at rest: it loads an
// EncryptionConfiguration (secretbox, AES-CBC, AES-GCM, KMS v2; all by the
// library), follows changes of the file, and writes the file of clusters that
// bring none.
package encryption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
)

// Encryption is a loaded configuration. Its methods are safe for concurrent
// use.
type Encryption struct {
	file, serverID string
	// life bounds what providers run beside requests (KMS connections).
	life         context.Context //nolint:containedctx // providers outlive the call that loads them
	transformers *encryptionconfig.DynamicTransformers

	mu   sync.Mutex // one reload at a time, as the library asks
	hash string
}

// Load reads the configuration; ctx is the life of what it starts.
func Load(ctx context.Context, file, serverID string) (*Encryption, error) {
	e := &Encryption{file: file, serverID: serverID, life: ctx}
	loaded, stop, err := e.load()
	if err != nil {
		return nil, err
	}
	e.hash = loaded.EncryptionFileContentHash
	e.transformers = encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], stop, loaded.KMSCloseGracePeriod)
	return e, nil
}

func (e *Encryption) load() (*encryptionconfig.EncryptionConfiguration, context.CancelFunc, error) {
	ctx, stop := context.WithCancel(e.life)
	// With reload the library joins all health checks into one.
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, e.file, true, e.serverID)
	if err == nil && len(loaded.HealthChecks) != 1 {
		err = fmt.Errorf("%d health checks, want one", len(loaded.HealthChecks))
	}
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("loading the encryption configuration %s: %w", e.file, err)
	}
	return loaded, stop, nil
}

// Transformer turns stored bytes of a resource into clear ones and back. A nil
// Encryption stores clear text and refuses to read what is encrypted.
func (e *Encryption) Transformer(resource schema.GroupResource) value.Transformer {
	if e == nil {
		return encryptionconfig.StaticTransformers(nil).TransformerForResource(resource)
	}
	return e.transformers.TransformerForResource(resource)
}

// HealthCheck asks the providers that have one (KMS).
func (e *Encryption) HealthCheck() healthz.HealthChecker { return e.transformers }

// Reload takes the file over if it has changed. A file that cannot be used
// leaves everything as it was.
func (e *Encryption) Reload() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	hash, err := encryptionconfig.GetEncryptionConfigHash(e.file)
	if err != nil {
		return fmt.Errorf("reading the encryption configuration %s: %w", e.file, err)
	}
	if hash == e.hash {
		return nil
	}
	loaded, stop, err := e.load()
	if err != nil {
		return err
	}
	// A KMS provider's check reads the request's context.
	if err := loaded.HealthChecks[0].Check((&http.Request{}).WithContext(e.life)); err != nil {
		stop()
		return fmt.Errorf("taking over the encryption configuration %s: %w", e.file, err)
	}
	e.transformers.Set(loaded.Transformers, stop, loaded.HealthChecks[0], loaded.KMSCloseGracePeriod)
	e.hash = loaded.EncryptionFileContentHash
	return nil
}

// Follow reloads whenever the file changes, until ctx ends.
func (e *Encryption) Follow(ctx context.Context, log *slog.Logger) error {
	changes, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("following the encryption configuration: %w", err)
	}
	defer changes.Close()
	// A file that is replaced gets a new inode: its directory tells of it.
	if err := changes.Add(filepath.Dir(e.file)); err != nil {
		return fmt.Errorf("following the encryption configuration: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err, open := <-changes.Errors:
			if !open {
				return errors.New("following the encryption configuration: the kernel ended the watch")
			}
			log.Warn("following the encryption configuration", "err", err)
		case _, open := <-changes.Events:
			if !open {
				return errors.New("following the encryption configuration: the kernel ended the watch")
			}
			if err := e.Reload(); err != nil {
				log.Error("the encryption configuration stays as it was", "err", err)
			}
		}
	}
}
