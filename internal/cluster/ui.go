package cluster

import (
	"context"
	"time"

	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/ui"
	"github.com/berth-dev/berth/internal/ui/view"
)

// rulesTimeout bounds a question to the service proxy.
const rulesTimeout = 2 * time.Second

// serveUI puts the status page into the API server. It reads the shared
// informers and runs nothing of its own.
func (u *up) serveUI(context.Context) error {
	u.api.ServeUI(ui.New(ui.Config{
		Informers: u.informers, Loopback: srvConfig(u.api), Authorizer: u.api.Auth().Authorizer, Records: u.journal.Query,
		Heartbeat: u.board.Heard, Outlook: u.board.Explain, Zones: func() []view.Zone { return zonesShown(u.board.Zones()) },
		Parts: u.partsShown, Certificates: u.certificatesShown, Rules: u.rulesShown, Life: u.parts.Context(), Log: u.serverLog,
	}))
	return nil
}

func zonesShown(zones []health.ZoneView) []view.Zone {
	out := make([]view.Zone, len(zones))
	for i, z := range zones {
		out[i] = view.Zone{Name: z.Name, State: z.State.String(), Ready: z.Ready, NotReady: z.NotReady, Rate: z.Rate, Tokens: z.Tokens,
			Waiting: z.Waiting}
	}
	return out
}

// partsShown are the parts of this process; one that ended and runs again names
// its last error.
func (u *up) partsShown() []view.Part {
	states := u.parts.States()
	out := make([]view.Part, len(states))
	for i, s := range states {
		out[i] = view.Part{Name: s.Name, Since: s.Since, Restarts: s.Restarts}
		if s.Restarts > 0 {
			out[i].Fault = s.LastError
		}
	}
	return out
}

func (u *up) certificatesShown() []view.Certificate {
	ends := u.ends.Load()
	if ends == nil {
		return nil
	}
	out := make([]view.Certificate, len(*ends))
	for i, e := range *ends {
		out[i] = view.Certificate{Name: e.Name, End: e.End, Renewal: e.Renewal}
	}
	return out
}

// rulesShown are what the service proxy of this host programs for a Service;
// none where no proxy runs.
func (u *up) rulesShown(ctx context.Context, namespace, name string) []string {
	ctx, cancel := context.WithTimeout(ctx, rulesTimeout)
	defer cancel()
	lines, err := u.tracer.Service(ctx, model.Name{Namespace: namespace, Name: name})
	if err != nil {
		return nil
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = l.Text
		if l.Kernel != "" {
			out[i] += "  (kernel: " + l.Kernel + ")"
		}
	}
	return out
}
