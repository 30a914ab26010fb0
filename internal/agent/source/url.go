package source

import (
	"bytes"
	"context"
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
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	var before []byte
	for {
		data, err := s.fetch(ctx, client)
		switch {
		case err != nil:
			s.cfg.Log.Error("asking for static pods", "url", s.cfg.URL, "err", err)
		case before != nil && bytes.Equal(data, before):
		default:
			pods, err := parse(data, origin{node: s.cfg.NodeName, kind: "http", place: s.cfg.URL, seen: s.cfg.Now()}, true)
			if err != nil {
				s.cfg.Log.Error("reading static pods", "url", s.cfg.URL, "err", err)
			}
			if err == nil || len(pods) > 0 {
				before = data
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

func (s *set) fetch(ctx context.Context, client *http.Client) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.URL, nil)
	if err != nil {
		return nil, err
	}
	for k, v := range s.cfg.Header {
		req.Header[k] = v
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", resp.Status)
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("the answer is empty")
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("the answer has more than %d bytes", maxManifest)
	}
	return data, nil
}
