package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/journal"
)

// What is asked of the API for a page, as the caller, is kept for a while: pages
// are rendered again with every change.
const (
	eventsKept     = 5 * time.Second
	thresholdsKept = time.Minute
	// agentTimeout bounds a question to a node's agent.
	agentTimeout = time.Second
	// maxKept bounds what is kept; all of it is dropped then.
	maxKept = 2000
	// maxEvents bounds the events about one object.
	maxEvents = 200
)

// asked reads the API with the caller's identity.
type asked struct {
	loopback *rest.Config

	mu   sync.Mutex
	kept map[string]answer
}

type answer struct {
	until time.Time
	value any
}

func newAsked(loopback *rest.Config) *asked {
	return &asked{loopback: loopback, kept: map[string]answer{}}
}

// as is a client with the identity of a user: the API server decides what it may.
func (a *asked) as(u user.Info) *rest.Config {
	cfg := rest.CopyConfig(a.loopback)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: u.GetName(), UID: u.GetUID(), Groups: slices.Clone(u.GetGroups()),
		Extra: maps.Clone(u.GetExtra())}
	cfg.QPS, cfg.Burst = -1, 0
	return cfg
}

// identity is all of a user that rights depend on.
func identity(u user.Info) string {
	extra, _ := json.Marshal(u.GetExtra()) //nolint:errcheck // a map of strings
	return fmt.Sprintf("%q %q %q %s", u.GetName(), u.GetUID(), u.GetGroups(), extra)
}

// keep returns what f returned for the key, at most some time ago.
func keep[T any](a *asked, key string, lasts time.Duration, f func() T) T {
	at := time.Now()
	a.mu.Lock()
	have, ok := a.kept[key]
	a.mu.Unlock()
	if ok && have.until.After(at) {
		return have.value.(T)
	}
	value := f()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.kept) >= maxKept {
		clear(a.kept)
	}
	a.kept[key] = answer{at.Add(lasts), value}
	return value
}

// events are those about an object that the user may list; none where the API
// refuses.
func (a *asked) events(ctx context.Context, u user.Info, kind, namespace, name string) []*v1.Event {
	if a.loopback == nil {
		return nil
	}
	key := "events " + identity(u) + kind + "/" + namespace + "/" + name
	return keep(a, key, eventsKept, func() []*v1.Event {
		path := "/api/v1/events"
		if namespace != "" {
			path = "/api/v1/namespaces/" + url.PathEscape(namespace) + "/events"
		}
		raw, err := a.get(ctx, u, path, map[string]string{"limit": fmt.Sprint(maxEvents),
			"fieldSelector": "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
		var list v1.EventList
		if err != nil || json.Unmarshal(raw, &list) != nil {
			return nil
		}
		out := make([]*v1.Event, len(list.Items))
		for i := range list.Items {
			out[i] = &list.Items[i]
		}
		return out
	})
}

// thresholds are those of the agent's configuration, if the user may read it.
func (a *asked) thresholds(ctx context.Context, u user.Info, node string) []journal.Fact {
	if a.loopback == nil {
		return nil
	}
	return keep(a, "thresholds "+identity(u)+node, thresholdsKept, func() []journal.Fact {
		ctx, cancel := context.WithTimeout(ctx, agentTimeout)
		defer cancel()
		raw, err := a.get(ctx, u, "/api/v1/nodes/"+url.PathEscape(node)+"/proxy/configz", nil)
		if err != nil {
			return nil
		}
		return thresholdsOf(raw)
	})
}

// thresholdsOf reads eviction thresholds from an agent's /configz.
func thresholdsOf(configz []byte) (out []journal.Fact) {
	var c struct {
		Config struct {
			EvictionHard            map[string]string `json:"evictionHard"`
			EvictionSoft            map[string]string `json:"evictionSoft"`
			EvictionSoftGracePeriod map[string]string `json:"evictionSoftGracePeriod"`
		} `json:"kubeletconfig"`
	}
	if json.Unmarshal(configz, &c) != nil {
		return nil
	}
	for _, signal := range slices.Sorted(maps.Keys(c.Config.EvictionHard)) {
		out = append(out, journal.Fact{Name: signal, Value: "evicts below " + c.Config.EvictionHard[signal]})
	}
	for _, signal := range slices.Sorted(maps.Keys(c.Config.EvictionSoft)) {
		out = append(out, journal.Fact{Name: signal, Value: "evicts below " + c.Config.EvictionSoft[signal] + " for " +
			c.Config.EvictionSoftGracePeriod[signal]})
	}
	return out
}

// get performs one request as the user.
func (a *asked) get(ctx context.Context, u user.Info, path string, params map[string]string) ([]byte, error) {
	return get(ctx, a.as(u), path, params)
}

// get performs one request and returns its body.
func get(ctx context.Context, cfg *rest.Config, path string, params map[string]string) ([]byte, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = "application/json", "application/json"
	client, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	req := client.Get().AbsPath(path)
	for k, v := range params {
		req = req.Param(k, v)
	}
	return req.DoRaw(ctx)
}
