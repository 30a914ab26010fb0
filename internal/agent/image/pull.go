package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	backoffInitial = 10 * time.Second
	backoffMax     = 300 * time.Second
)

// backoff is how one pod fared with one image.
type backoff struct {
	until time.Time
	delay time.Duration
	// cause is the last failure in the form "reason: message".
	cause string
}

// flight is a pull that runs; others for the same image and credentials wait
// for its end instead of pulling too.
type flight struct {
	done chan struct{}
	res  result
	err  error
}

func (p *Puller) pullWithBackoff(ctx context.Context, r request, spec *runtimeapi.ImageSpec, named reference.Named,
	creds []credential) (result, error) {
	key := string(r.Pod.UID) + "_" + spec.Image
	now := p.cfg.Clock.Now()
	p.mu.Lock()
	b := p.backoff[key]
	// A failure long ago says nothing any more.
	if b != nil && now.Sub(b.until) > 2*backoffMax {
		delete(p.backoff, key)
		b = nil
	}
	if b != nil && now.Before(b.until) {
		cause, until := b.cause, b.until
		p.mu.Unlock()
		message := fmt.Sprintf("Back-off pulling image %q", r.Image)
		p.event(r, v1.EventTypeNormal, "BackOff", message)
		return result{}, p.fail(r, &Error{Reason: ReasonImagePullBackOff, Message: message + ": " + cause, RetryAt: until})
	}
	p.mu.Unlock()

	res, err := p.pull(ctx, r, spec, named, creds)
	if err == nil {
		p.mu.Lock()
		delete(p.backoff, key)
		p.mu.Unlock()
		return res, nil
	}
	if ctx.Err() != nil {
		return result{}, fmt.Errorf("pulling image %q: %w", r.Image, ctx.Err())
	}
	reason, message := classify(r.Image, err)
	p.event(r, v1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", r.Image, message))
	now = p.cfg.Clock.Now()
	p.mu.Lock()
	b = p.backoff[key]
	if b == nil {
		b = &backoff{}
		p.backoff[key] = b
	}
	b.delay = min(max(backoffInitial, 2*b.delay), backoffMax)
	b.until, b.cause = now.Add(b.delay), reason+": "+message
	until := b.until
	p.mu.Unlock()
	return result{}, p.fail(r, &Error{Reason: reason, Message: message, Err: err, RetryAt: until})
}

// pull gets the image through a slot of its registry, or joins a pull of the
// same image with the same credentials that is on its way.
func (p *Puller) pull(ctx context.Context, r request, spec *runtimeapi.ImageSpec, named reference.Named, creds []credential) (result,
	error) {
	key := spec.Image + "|" + spec.RuntimeHandler + "|" + fingerprint(creds)
	start := p.cfg.Clock.Now()
	for {
		p.mu.Lock()
		f := p.inflight[key]
		if f == nil {
			f = &flight{done: make(chan struct{})}
			p.inflight[key] = f
			p.mu.Unlock()
			f.res, f.err = p.lead(ctx, r, spec, named, creds, start)
			p.mu.Lock()
			delete(p.inflight, key)
			p.mu.Unlock()
			close(f.done)
			return f.res, f.err
		}
		p.mu.Unlock()
		p.event(r, v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", r.Image))
		over := p.awaited(ctx, r, p.cfg.Clock.Now())
		select {
		case <-f.done:
			over()
		case <-ctx.Done():
			over()
			return result{}, ctx.Err()
		}
		// The leader's pod may have gone away in the middle: not our failure.
		if errors.Is(f.err, context.Canceled) || errors.Is(f.err, context.DeadlineExceeded) {
			continue
		}
		if f.err == nil {
			p.pulled(r, f.res, 0, p.cfg.Clock.Since(start))
		}
		return f.res, f.err
	}
}

// lead pulls for itself and anyone who joins.
func (p *Puller) lead(ctx context.Context, r request, spec *runtimeapi.ImageSpec, named reference.Named, creds []credential,
	start time.Time) (result, error) {
	if r.absent {
		// Another pod's pull may have ended between our look and our turn.
		res, err := p.inspect(ctx, spec)
		if err == nil && res != nil && p.mayUse(spec.Image, res.ID, func() []credential { return creds }) {
			p.pulled(r, *res, 0, p.cfg.Clock.Since(start))
			return *res, nil
		}
	}
	release, err := p.slots.acquire(ctx, reference.Domain(named))
	if err != nil {
		return result{}, err
	}
	defer release()
	if p.limiter != nil && !p.limiter.AllowN(p.cfg.Clock.Now(), 1) {
		return result{}, errQPS
	}
	p.event(r, v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", r.Image))
	begun := p.cfg.Clock.Now()
	over := p.awaited(ctx, r, begun)
	ref, used, err := p.tryAll(ctx, r, spec, creds)
	over()
	took := p.cfg.Clock.Since(begun)
	p.metrics.observe(took, err)
	if err != nil {
		return result{}, err
	}
	res, err := p.inspect(ctx, &runtimeapi.ImageSpec{Image: spec.Image, UserSpecifiedImage: spec.UserSpecifiedImage,
		RuntimeHandler: spec.RuntimeHandler})
	if err != nil {
		return result{}, fmt.Errorf("inspecting the pulled image: %w", err)
	}
	if res == nil {
		res = &result{Ref: ref, ID: ref}
	}
	res.Pulled = true
	p.metrics.pulled(took, res.Size)
	if p.records != nil {
		if err := p.records.pulled(res.ID, repository(named), used, p.cfg.Clock.Now()); err != nil {
			// The image is there; without a record it is verified again.
			p.cfg.Log.Warn("recording a pulled image", "image", r.Image, "err", err)
		}
	}
	p.pulled(r, *res, took, p.cfg.Clock.Since(start))
	return *res, nil
}

func (p *Puller) pulled(r request, res result, took, total time.Duration) {
	p.event(r, v1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		r.Image, took.Truncate(time.Millisecond), total.Truncate(time.Millisecond), res.Size))
}

// tryAll pulls with each credential until one works, and without any last. It
// returns the credential that worked, nil for none.
func (p *Puller) tryAll(ctx context.Context, r request, spec *runtimeapi.ImageSpec, creds []credential) (string, *credential, error) {
	if p.records != nil {
		done, err := p.records.intend(spec.Image)
		if err != nil {
			return "", nil, fmt.Errorf("recording the intent to pull: %w", err)
		}
		defer done()
	}
	var errs []error
	for i := range creds {
		ref, err := p.cfg.Service.PullImage(ctx, spec, creds[i].auth(), r.Sandbox)
		if err == nil {
			return ref, &creds[i], nil
		}
		if ctx.Err() != nil {
			return "", nil, ctx.Err()
		}
		errs = append(errs, err)
	}
	ref, err := p.cfg.Service.PullImage(ctx, spec, nil, r.Sandbox)
	if err == nil {
		return ref, nil, nil
	}
	if ctx.Err() != nil {
		return "", nil, ctx.Err()
	}
	if len(errs) == 0 {
		return "", nil, err
	}
	// Without credentials the registry only says that some are needed; what it
	// said to those we have is what helps.
	return "", nil, utilerrors.NewAggregate(errs)
}
