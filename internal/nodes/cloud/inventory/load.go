package inventory

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// loader fetches the bytes of a list.
type loader interface {
	// name is where they come from, for messages.
	name() string
	// load gets them; changed is false when they are those of the last load.
	load(ctx context.Context) (data []byte, changed bool, err error)
	// watch calls look whenever they may have changed, until ctx ends.
	watch(ctx context.Context, look func()) error
}

func newLoader(config string) (loader, error) {
	switch {
	case config == "":
		return nil, errors.New("cloud provider inventory needs --cloud-config: a file, or an https:// address")
	case strings.HasPrefix(config, "http://"):
		return nil, fmt.Errorf("--cloud-config %s: must begin with https://: anyone who can change the list can delete nodes", config)
	case strings.HasPrefix(config, "https://"):
		return newRemote(source{URL: config})
	}
	data, err := os.ReadFile(config)
	if err != nil {
		return nil, fmt.Errorf("reading --cloud-config: %w", err)
	}
	src, ok, err := parseSource(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	if ok {
		return newRemote(src)
	}
	return &file{path: config}, nil
}

// file is a list in a file. Config maps and editors replace files, so it is
// the folder that is watched.
type file struct {
	path string
	last []byte
}

func (f *file) name() string { return f.path }

func (f *file) load(context.Context) ([]byte, bool, error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return nil, false, fmt.Errorf("reading the machine inventory: %w", err)
	}
	changed := string(data) != string(f.last)
	f.last = data
	return data, changed, nil
}

func (f *file) watch(ctx context.Context, look func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", f.path, err)
	}
	defer w.Close()
	if err := w.Add(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("watching %s: %w", f.path, err)
	}
	look() // what changed before the watch began
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err, ok := <-w.Errors:
			if !ok {
				return fmt.Errorf("watching %s: the watch ended", f.path)
			}
			return fmt.Errorf("watching %s: %w", f.path, err)
		case _, ok := <-w.Events:
			if !ok {
				return fmt.Errorf("watching %s: the watch ended", f.path)
			}
			look()
		}
	}
}

// Of a remote list: how often it is asked for, how long an answer may take, and
// how large it may be.
const (
	defaultInterval = 30 * time.Second
	leastInterval   = time.Second
	answerTimeout   = 15 * time.Second
	mostBytes       = 64 << 20
)

// remote is a list behind HTTPS. With an ETag an unchanged list costs a few
// bytes.
type remote struct {
	source
	interval time.Duration
	client   *http.Client
	etag     string
	last     string
}

func newRemote(s source) (*remote, error) {
	r := &remote{source: s, interval: defaultInterval}
	if s.Interval != "" {
		d, err := time.ParseDuration(s.Interval)
		if err != nil || d < leastInterval {
			return nil, fmt.Errorf("machine inventory source: interval %q: must be a duration of at least %s", s.Interval, leastInterval)
		}
		r.interval = d
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		IdleConnTimeout: time.Minute}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("machine inventory source: caFile: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("machine inventory source: caFile %s holds no certificate", s.CAFile)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	r.client = &http.Client{Timeout: answerTimeout, Transport: transport, CheckRedirect: func(req *http.Request, _ []*http.Request) error {
		if req.URL.Scheme != "https" {
			return fmt.Errorf("redirected to %s, which is not https", req.URL)
		}
		return nil
	}}
	return r, nil
}

func (r *remote) name() string { return r.URL }

func (r *remote) load(ctx context.Context) ([]byte, bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, nil)
	if err != nil {
		return nil, false, fmt.Errorf("asking for the machine inventory: %w", err)
	}
	if r.etag != "" {
		req.Header.Set("If-None-Match", r.etag)
	}
	if r.TokenFile != "" {
		token, err := os.ReadFile(r.TokenFile)
		if err != nil {
			return nil, false, fmt.Errorf("reading the token for the machine inventory: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, false, fmt.Errorf("asking for the machine inventory: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified {
		return nil, false, nil
	}
	if resp.StatusCode != http.StatusOK {
		return nil, false, fmt.Errorf("asking %s for the machine inventory: %s", r.URL, resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, mostBytes+1))
	if err != nil {
		return nil, false, fmt.Errorf("reading the machine inventory of %s: %w", r.URL, err)
	}
	if len(data) > mostBytes {
		return nil, false, fmt.Errorf("the machine inventory of %s is larger than %d MiB", r.URL, mostBytes>>20)
	}
	changed := string(data) != r.last
	r.etag, r.last = resp.Header.Get("ETag"), string(data)
	return data, changed, nil
}

func (r *remote) watch(ctx context.Context, look func()) error {
	defer r.client.CloseIdleConnections()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.interval + rand.N(r.interval/8+1)):
			look()
		}
	}
}
