package recount

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// charges are what admission added to quotas lately. It charges before the
// object is stored: a count in between finds no object, and would give back
// what was just taken. Such a charge counts as used for a moment longer.
type charges struct {
	mu   sync.Mutex
	last map[string][]charge
}

type charge struct {
	at    time.Time
	added corev1.ResourceList
}

// seen remembers what the status of a quota gained.
func (c *charges) seen(key string, was, now corev1.ResourceList, at time.Time) {
	added := corev1.ResourceList{}
	for name, n := range now {
		n = n.DeepCopy()
		n.Sub(was[name])
		if n.Sign() > 0 {
			added[name] = n
		}
	}
	if len(added) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = map[string][]charge{}
	}
	c.last[key] = append(c.last[key], charge{at, added})
}

// since adds up what a quota was charged after a moment, and forgets what came
// before it.
func (c *charges) since(key string, from time.Time) corev1.ResourceList {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum, kept := corev1.ResourceList{}, c.last[key][:0]
	for _, one := range c.last[key] {
		if !one.at.After(from) {
			continue
		}
		kept = append(kept, one)
		for name, n := range one.added {
			sum[name] = plus(sum[name], n)
		}
	}
	if len(kept) == 0 {
		delete(c.last, key)
	} else {
		c.last[key] = kept
	}
	return sum
}

func plus(a, b resource.Quantity) resource.Quantity {
	out := a.DeepCopy()
	out.Add(b)
	return out
}

// withPending is the usage to write, from what was counted, what the status
// says and what was charged lately: a charge without its object keeps what it
// took, and never takes more than the status says. again is when to count
// again, 0 when nothing was kept.
func withPending(counted, told, pending corev1.ResourceList) (used corev1.ResourceList, again time.Duration) {
	used = corev1.ResourceList{}
	for name, n := range counted {
		used[name] = n
		most, has := told[name]
		if !has || most.Cmp(n) <= 0 {
			continue
		}
		with := plus(n, pending[name])
		if with.Cmp(most) > 0 {
			with = most.DeepCopy()
		}
		if with.Cmp(n) > 0 {
			used[name], again = with, settle
		}
	}
	return used, again
}
