// Package image makes sure that the images of a pod are on the node and that
// the pod may use them: pull policies, credentials, back-off, and bounded
// parallel pulls that are fair between registries.
package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/journal"
)

// service is what is needed of the runtime's image service.
type service interface {
	ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error)
	PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string,
		error)
}

// Waiting reasons of containers whose image is not there.
const (
	ReasonErrImagePull        = "ErrImagePull"
	ReasonImagePullBackOff    = "ImagePullBackOff"
	ReasonErrImageNeverPull   = "ErrImageNeverPull"
	ReasonInvalidImageName    = "InvalidImageName"
	ReasonImageInspectError   = "ImageInspectError"
	ReasonRegistryUnavailable = "RegistryUnavailable"
	ReasonSignatureInvalid    = "SignatureValidationFailed"
)

// Error is why an image cannot be used now. Reason and Message are those of
// the waiting container. RetryAt is when trying again makes sense; zero means
// that only a change of the pod helps.
type Error struct {
	Reason, Message string
	RetryAt         time.Time
	Err             error
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }
func (e *Error) Unwrap() error { return e.Err }

// result is an image that is on the node.
type result struct {
	// Ref is the image that the runtime is asked to run.
	Ref string
	// ID is the runtime's id of the image.
	ID string
	// UID is the image's numeric user, Username its name when it has one.
	UID      *int64
	Username string
	// Size in bytes.
	Size uint64
	// Pulled says that this call pulled it.
	Pulled bool
}

// Config configures a Puller.
type Config struct {
	Service service
	// Secret reads pull secrets, usually from the volume manager's cache.
	Secret func(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// Event reports to the pod's user, on one of its containers. It must not
	// block. It may be nil.
	Event func(pod *v1.Pod, container, eventType, reason, message string)
	// MaxParallel bounds pulls at a time; 0 means 4.
	MaxParallel int
	// QPS and Burst bound the start of pulls; QPS 0 means no bound.
	QPS   float64
	Burst int
	// Dir holds the records of which credentials pulled which image; "" keeps
	// no records, and every pod may use every image.
	Dir string
	// Verification is when a pod must show credentials for an image that is
	// on the node already.
	Verification Verification
	// NodeCredentials are docker configuration files of the node, best first.
	NodeCredentials []string
	// Providers are credential provider plugins; nil for none.
	Providers *Providers

	Clock   clock.PassiveClock
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Journal journal.Sink
}

// Puller makes images available. Methods may be called concurrently.
type Puller struct {
	cfg     Config
	slots   *slots
	limiter *rate.Limiter
	records *records
	metrics *metrics

	mu       sync.Mutex
	backoff  map[string]*backoff
	inflight map[string]*flight
}

// New makes a Puller.
func New(cfg Config) (*Puller, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	if cfg.MaxParallel <= 0 {
		cfg.MaxParallel = 4
	}
	if err := cfg.Verification.check(); err != nil {
		return nil, err
	}
	p := &Puller{
		cfg: cfg, slots: newSlots(cfg.MaxParallel), backoff: map[string]*backoff{},
		inflight: map[string]*flight{}, metrics: newMetrics(cfg.Metrics),
	}
	if cfg.QPS > 0 {
		p.limiter = rate.NewLimiter(rate.Limit(cfg.QPS), max(cfg.Burst, 1))
	}
	if cfg.Dir != "" {
		r, err := openRecords(filepath.Join(cfg.Dir, "image_manager"))
		if err != nil {
			return nil, err
		}
		p.records = r
	}
	return p, nil
}

// request names an image that a pod needs.
type request struct {
	Pod *v1.Pod
	// Container is where events are reported.
	Container string
	// Image as the pod spec says; Policy "" means the API's default.
	Image  string
	Policy v1.PullPolicy
	// RuntimeHandler and Sandbox are passed on to the runtime.
	RuntimeHandler string
	Sandbox        *runtimeapi.PodSandboxConfig

	// absent is set when the image was looked for and not there: a pull that
	// another pod ended meanwhile may have brought it.
	absent bool
}

// Ensure makes the image of a container available. Errors are *Error unless
// ctx ended.
func (p *Puller) Ensure(ctx context.Context, pod *v1.Pod, c *v1.Container) (result, error) {
	return p.EnsureImage(ctx, request{Pod: pod, Container: c.Name, Image: c.Image, Policy: c.ImagePullPolicy})
}

// EnsureVolumes makes the images of a pod's image volumes available, for one
// of its containers, and returns them by volume name.
func (p *Puller) EnsureVolumes(ctx context.Context, pod *v1.Pod, c *v1.Container) (map[string]result, error) {
	out := map[string]result{}
	for _, m := range c.VolumeMounts {
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			if v.Name != m.Name || v.Image == nil || v.Image.Reference == "" {
				continue
			}
			r, err := p.EnsureImage(ctx, request{Pod: pod, Container: c.Name, Image: v.Image.Reference, Policy: v.Image.PullPolicy})
			if err != nil {
				return nil, err
			}
			out[v.Name] = r
		}
	}
	return out, nil
}

// EnsureImage makes one image available to a pod.
func (p *Puller) EnsureImage(ctx context.Context, r request) (result, error) {
	image, named, err := normalize(r.Image)
	if err != nil {
		message := fmt.Sprintf("Failed to apply default image tag %q: %v", r.Image, err)
		p.event(r, v1.EventTypeWarning, "InspectFailed", message)
		return result{}, p.fail(r, &Error{Reason: ReasonInvalidImageName, Message: message, Err: err})
	}
	policy := r.Policy
	if policy == "" {
		policy = defaultPolicy(named)
	}
	spec := &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: r.Image, RuntimeHandler: r.RuntimeHandler}
	present, err := p.inspect(ctx, spec)
	if err != nil {
		if ctx.Err() != nil {
			return result{}, fmt.Errorf("inspecting image %q: %w", image, ctx.Err())
		}
		message := fmt.Sprintf("Failed to inspect image %q: %v", image, err)
		p.event(r, v1.EventTypeWarning, "InspectFailed", message)
		return result{}, p.fail(r, &Error{Reason: ReasonImageInspectError, Message: message, Err: err,
			RetryAt: p.cfg.Clock.Now().Add(backoffInitial)})
	}
	keys := p.keyring(r)
	if present != nil && policy != v1.PullAlways {
		if p.mayUse(image, present.ID, func() []credential { return keys(ctx) }) {
			p.event(r, v1.EventTypeNormal, "Pulled",
				fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", r.Image))
			return *present, nil
		}
		if policy == v1.PullNever {
			present = nil
		}
	}
	if policy == v1.PullNever {
		message := fmt.Sprintf("Container image %q is not present with pull policy of Never", r.Image)
		p.event(r, v1.EventTypeWarning, ReasonErrImageNeverPull, message)
		return result{}, p.fail(r, &Error{Reason: ReasonErrImageNeverPull, Message: message})
	}
	r.absent = present == nil && policy != v1.PullAlways
	return p.pullWithBackoff(ctx, r, spec, named, keys(ctx))
}

// inspect asks the runtime for an image; nil means that it is not there.
func (p *Puller) inspect(ctx context.Context, spec *runtimeapi.ImageSpec) (*result, error) {
	resp, err := p.cfg.Service.ImageStatus(ctx, spec, false)
	if err != nil {
		return nil, err
	}
	img := resp.GetImage()
	if img == nil || img.Id == "" {
		return nil, nil
	}
	out := &result{Ref: img.Id, ID: img.Id, Username: img.Username, Size: img.Size}
	if img.Uid != nil {
		uid := img.Uid.Value
		out.UID = &uid
	} else if img.Username == "" {
		// No user at all runs as root.
		var root int64
		out.UID = &root
	}
	return out, nil
}

// normalize checks an image name and gives it the default tag. The name that
// is passed on is as the user wrote it apart from that.
func normalize(image string) (string, reference.Named, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", nil, fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	if reference.IsNameOnly(named) {
		image += ":latest"
		named = reference.TagNameOnly(named)
	}
	return image, named, nil
}

// defaultPolicy is the API's default, for pods that skipped defaulting.
func defaultPolicy(named reference.Named) v1.PullPolicy {
	if t, ok := named.(reference.Tagged); ok && t.Tag() == "latest" {
		if _, pinned := named.(reference.Digested); !pinned {
			return v1.PullAlways
		}
	}
	return v1.PullIfNotPresent
}

func (p *Puller) event(r request, eventType, reason, message string) {
	if p.cfg.Event != nil {
		p.cfg.Event(r.Pod, r.Container, eventType, reason, message)
	}
}

// fail reports a waiting reason as the container's own event and in the journal.
func (p *Puller) fail(r request, e *Error) error {
	if e.Reason != ReasonErrImageNeverPull {
		p.event(r, v1.EventTypeWarning, "Failed", "Error: "+e.Reason)
	}
	p.cfg.Journal.Append(journal.Record{
		Time: p.cfg.Clock.Now(), Part: "agent", Decision: "image not available",
		Object: journal.Ref{Kind: "Pod", Namespace: r.Pod.Namespace, Name: r.Pod.Name, UID: string(r.Pod.UID)},
		Because: []journal.Fact{{Name: "container", Value: r.Container}, {Name: "image", Value: r.Image},
			{Name: "reason", Value: e.Reason}},
	})
	return e
}

// classify turns what the runtime said about a pull into reason and message.
func classify(image string, err error) (reason, message string) {
	text := err.Error()
	suffix := func(prefix error) string {
		_, after, _ := strings.Cut(text, prefix.Error())
		return after
	}
	switch {
	case crierrors.IsNotFound(err):
		return ReasonErrImagePull, text
	case strings.Contains(text, crierrors.ErrRegistryUnavailable.Error()):
		return ReasonRegistryUnavailable, fmt.Sprintf("image pull failed for %s because the registry is unavailable%s", image,
			suffix(crierrors.ErrRegistryUnavailable))
	case strings.Contains(text, crierrors.ErrSignatureValidationFailed.Error()):
		return ReasonSignatureInvalid, fmt.Sprintf("image pull failed for %s because the signature validation failed%s", image,
			suffix(crierrors.ErrSignatureValidationFailed))
	}
	return ReasonErrImagePull, text
}

// Forget drops the back-off of a pod that is gone.
func (p *Puller) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.backoff {
		if strings.HasPrefix(k, string(uid)+"_") {
			delete(p.backoff, k)
		}
	}
}

// Imported notes an image that was put on the node without credentials, such
// as an archive imported at start: every pod may use it.
func (p *Puller) Imported(imageID string) error {
	if p.records == nil {
		return nil
	}
	return p.records.forget(imageID)
}

var errQPS = errors.New("pull QPS exceeded")
