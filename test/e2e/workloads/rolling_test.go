package workloads

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// rolling is a web server behind a Service that is replaced under load. As
// everywhere in Kubernetes, a pod goes on serving for a moment after it was
// asked to end, while the news of its end travels.
const rolling = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: rolling}
spec:
  replicas: 3
  strategy: {rollingUpdate: {maxUnavailable: 1, maxSurge: 1}}
  selector: {matchLabels: {app: rolling}}
  template:
    metadata: {labels: {app: rolling}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
      - name: web
        image: berth.dev/toolbox:1
        args: [serve, "8080"]
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 2}}}
---
apiVersion: v1
kind: Service
metadata: {name: rolling}
spec:
  selector: {app: rolling}
  ports: [{name: http, port: 80, targetPort: http}]
`

// load sends requests to a URL, each on a connection of its own, until its
// context ends, and keeps what failed.
type load struct {
	mu     sync.Mutex
	sent   int
	failed []string
}

func (l *load) run(ctx context.Context, url string, workers int, pace time.Duration) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				err := once(client, url)
				l.mu.Lock()
				if l.sent++; err != nil {
					l.failed = append(l.failed, fmt.Sprintf("%s: %v", time.Now().Format("15:04:05.000"), err))
				}
				l.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func once(client *http.Client, url string) error {
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

// TestRollingUpdate replaces all pods of a Service twice, under hundreds of
// requests a second, without one that fails.
func TestRollingUpdate(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	c.Apply(rolling)
	c.Kubectl("rollout", "status", "deployment/rolling", "--timeout=60s")
	ip := strings.TrimSpace(c.Kubectl("get", "service", "rolling", "-o", "jsonpath={.spec.clusterIP}"))
	url := "http://" + ip + "/healthz"
	c.Eventually("the Service answers", func() (bool, string) {
		err := once(&http.Client{Timeout: time.Second}, url)
		return err == nil, fmt.Sprint(err)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var l load
	done := make(chan struct{})
	go func() { defer close(done); l.run(ctx, url, 10, 25*time.Millisecond) }()
	began := time.Now()
	for round := range 2 {
		// Not `rollout restart`: kubectl refuses it twice in one second.
		c.Kubectl("set", "env", "deployment/rolling", fmt.Sprintf("ROUND=%d", round))
		c.Kubectl("rollout", "status", "deployment/rolling", "--timeout=90s")
	}
	took := time.Since(began)
	cancel()
	<-done
	t.Logf("%d requests in %s, %.0f a second", l.sent, took.Round(time.Second), float64(l.sent)/took.Seconds())
	if len(l.failed) > 0 {
		t.Errorf("%d of %d requests failed:\n%s", len(l.failed), l.sent, strings.Join(l.failed[:min(len(l.failed), 20)], "\n"))
	}
	if l.sent < 100 {
		t.Errorf("only %d requests were sent", l.sent)
	}
}
