package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/distribution/reference"
)

// Policy is when a pod must prove that it may use an image that is on the
// node already.
type Policy string

const (
	NeverVerify            Policy = "NeverVerify"
	NeverVerifyPreloaded   Policy = "NeverVerifyPreloadedImages"
	NeverVerifyAllowlisted Policy = "NeverVerifyAllowlistedImages"
	AlwaysVerify           Policy = "AlwaysVerify"
)

// Verification is the policy with the images it exempts. The zero value is
// NeverVerifyPreloadedImages: images that no pull of ours brought are free.
type Verification struct {
	Policy Policy
	// Allowlist holds repositories; a last element "*" matches one more.
	Allowlist []string
}

func (v Verification) check() error {
	switch v.Policy {
	case "", NeverVerify, NeverVerifyPreloaded, NeverVerifyAllowlisted, AlwaysVerify:
		return nil
	}
	return fmt.Errorf("imagePullCredentialsVerificationPolicy %q: allowed are %s, %s, %s and %s",
		v.Policy, NeverVerify, NeverVerifyPreloaded, NeverVerifyAllowlisted, AlwaysVerify)
}

func (v Verification) exempt(repo string, recorded bool) bool {
	switch v.Policy {
	case NeverVerify:
		return true
	case "", NeverVerifyPreloaded:
		return !recorded
	case NeverVerifyAllowlisted:
		return slices.ContainsFunc(v.Allowlist, func(p string) bool {
			if dir, last := path.Split(p); last == "*" {
				d, _ := path.Split(repo)
				return d == dir
			}
			return p == repo
		})
	}
	return false
}

// mayUse says whether a pod with these credentials may run an image that is on
// the node: it was pulled without a secret, or with one that the pod has too.
// creds is asked only when that decides.
func (p *Puller) mayUse(image, id string, creds func() []credential) bool {
	if p.records == nil {
		return true
	}
	_, named, err := normalize(image)
	if err != nil {
		return false
	}
	repo := repository(named)
	rec, err := p.records.read(id)
	if err != nil {
		p.cfg.Log.Warn("reading the record of an image", "image", image, "err", err)
	}
	// An intent without a record is a pull that a crash interrupted after the
	// runtime had the image: whose it is, no one knows.
	if p.cfg.Verification.exempt(repo, rec != nil || err != nil || p.records.intended(image)) {
		return true
	}
	if rec == nil {
		return false
	}
	m, ok := rec.CredentialMapping[repo]
	if !ok {
		return false
	}
	if m.NodePodsAccessible {
		return true
	}
	for _, c := range creds() {
		for _, s := range m.KubernetesSecrets {
			same := s.UID == c.Source.SecretUID && s.Namespace == c.Source.SecretNamespace && s.Name == c.Source.SecretName
			if c.Source.SecretUID != "" && (same || s.CredentialHash == c.hash()) {
				return true
			}
		}
		for _, a := range m.KubernetesServiceAccounts {
			if c.Source.AccountUID != "" && a.UID == c.Source.AccountUID && a.Namespace == c.Source.AccountNamespace &&
				a.Name == c.Source.Account {
				return true
			}
		}
	}
	return false
}

func repository(named reference.Named) string { return named.Name() }

// record says who may use an image. The format is the one the kubelet keeps,
// so that either can go on from the other's files.
type record struct {
	Kind              string                 `json:"kind"`
	APIVersion        string                 `json:"apiVersion"`
	LastUpdatedTime   time.Time              `json:"lastUpdatedTime"`
	ImageRef          string                 `json:"imageRef"`
	CredentialMapping map[string]credentials `json:"credentialMapping,omitempty"`
}

type credentials struct {
	KubernetesSecrets         []recordSecret  `json:"kubernetesSecrets,omitempty"`
	KubernetesServiceAccounts []recordAccount `json:"kubernetesServiceAccounts,omitempty"`
	NodePodsAccessible        bool            `json:"nodePodsAccessible,omitempty"`
}

type recordSecret struct {
	UID            string `json:"uid"`
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	CredentialHash string `json:"credentialHash"`
}

type recordAccount struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

const recordVersion = "kubelet.config.k8s.io/v1beta1"

// maxRecorded bounds the secrets kept per repository; the oldest go first.
const maxRecorded = 100

// records keeps on disk which credentials brought which image, and which pulls
// were under way.
type records struct {
	dir string

	mu sync.Mutex
	// pending counts running pulls per image: only the last one to end may
	// drop the intent.
	pending map[string]int
}

func openRecords(dir string) (*records, error) {
	for _, sub := range []string{"pulling", "pulled"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("making the image records: %w", err)
		}
	}
	return &records{dir: dir, pending: map[string]int{}}, nil
}

func (r *records) file(sub, name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(r.dir, sub, "sha256-"+hex.EncodeToString(sum[:]))
}

// intend records that a pull begins; done drops the record.
func (r *records) intend(image string) (done func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	file := r.file("pulling", image)
	b, err := json.Marshal(map[string]string{"kind": "ImagePullIntent", "apiVersion": recordVersion, "image": image})
	if err != nil {
		return nil, err
	}
	if err := writeAtomic(file, b); err != nil {
		return nil, err
	}
	r.pending[image]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.pending[image]--; r.pending[image] == 0 {
			delete(r.pending, image)
			_ = os.Remove(file)
		}
	}, nil
}

// intended says whether a pull of an image began and never ended.
func (r *records) intended(image string) bool {
	_, err := os.Stat(r.file("pulling", image))
	return err == nil
}

// read is the record of an image, nil when there is none.
func (r *records) read(id string) (*record, error) {
	b, err := os.ReadFile(r.file("pulled", id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out record
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("image record: %w", err)
	}
	return &out, nil
}

// pulled adds to an image's record what brought it; used is nil for a pull
// without credentials, which makes the image free for all pods, as does a
// credential of the node itself.
func (r *records) pulled(id, repo string, used *credential, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, err := r.read(id)
	if err != nil || rec == nil {
		rec = &record{Kind: "ImagePulledRecord", APIVersion: recordVersion, ImageRef: id}
	}
	if rec.CredentialMapping == nil {
		rec.CredentialMapping = map[string]credentials{}
	}
	m := rec.CredentialMapping[repo]
	switch {
	case used != nil && used.Source.SecretUID != "":
		s := recordSecret{used.Source.SecretUID, used.Source.SecretNamespace, used.Source.SecretName, used.hash()}
		m.KubernetesSecrets = slices.DeleteFunc(m.KubernetesSecrets, func(o recordSecret) bool {
			return o.UID == s.UID && o.Namespace == s.Namespace && o.Name == s.Name
		})
		m.KubernetesSecrets = append(m.KubernetesSecrets, s)
		if n := len(m.KubernetesSecrets); n > maxRecorded {
			m.KubernetesSecrets = m.KubernetesSecrets[n-maxRecorded:]
		}
	case used != nil && used.Source.AccountUID != "":
		a := recordAccount{used.Source.AccountUID, used.Source.AccountNamespace, used.Source.Account}
		if !slices.Contains(m.KubernetesServiceAccounts, a) {
			m.KubernetesServiceAccounts = append(m.KubernetesServiceAccounts, a)
		}
	default:
		m = credentials{NodePodsAccessible: true}
	}
	rec.CredentialMapping[repo] = m
	rec.LastUpdatedTime = now.UTC()
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return writeAtomic(r.file("pulled", id), b)
}

// forget drops an image's record: it is as if it had always been there.
func (r *records) forget(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := os.Remove(r.file("pulled", id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("dropping an image record: %w", err)
	}
	return nil
}

func writeAtomic(file string, b []byte) error {
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}
