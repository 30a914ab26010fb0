package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// runURL asks a URL for pods. HTTP has no events, so this is the one source
// that polls; an answer like the one before costs nothing more.
func (s *set) runURL(ctx context.Context) {
	period := s.cfg.URLPeriod
	if period <= 0 {
		period = 20 * time.Second
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}}
	if !s.awaitRuntime(ctx) {
		return
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	var before []byte
	for {
		data, changed, err := s.fetch(ctx, client)
		switch {
		case err != nil:
			s.cfg.Log.Error("asking for static pods", "url", s.cfg.URL, "err", err)
		case before != nil && bytes.Equal(data, before):
		default:
			from := &origin{node: s.cfg.NodeName, kind: "http", place: s.cfg.URL, seen: s.cfg.Now(), changed: changed, ids: s.ids}
			pods, err := parse(data, from, true)
			if err != nil {
				s.cfg.Log.Error("reading static pods", "url", s.cfg.URL, "err", err)
			}
			if err == nil || len(pods) > 0 {
				before = data
				keys := make([]string, 0, len(pods))
				for _, p := range pods {
					keys = append(keys, "http:"+s.cfg.URL+"#"+nameOf(p).String())
				}
				s.keepIdentities("http", keys)
				s.replace("http", pods)
				s.reported("url")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// fetch also returns when the server says that its answer changed last, zero if
// it does not say.
func (s *set) fetch(ctx context.Context, client *http.Client) (data []byte, changed time.Time, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.URL, nil)
	if err != nil {
		return nil, changed, err
	}
	for k, v := range s.cfg.Header {
		req.Header[k] = v
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, changed, err
	}
	defer resp.Body.Close()
	data, err = io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	switch {
	case err != nil:
		return nil, changed, err
	case resp.StatusCode != http.StatusOK:
		return nil, changed, fmt.Errorf("the answer is %s", resp.Status)
	case len(data) == 0:
		return nil, changed, errors.New("the answer is empty")
	case len(data) > maxManifest:
		return nil, changed, fmt.Errorf("the answer has more than %d bytes", maxManifest)
	}
	if at, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		changed = at
	}
	return data, changed, nil
}
