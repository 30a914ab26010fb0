package cluster

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/berth-dev/berth/internal/control/workload"
	"github.com/berth-dev/berth/internal/control/workload/certificate"
)

const (
	// minCertificateLife leaves time for those who follow the files.
	minCertificateLife = 10 * time.Second
	// maxRenewalSleep bounds one sleep: timers do not run while a host is
	// suspended, and its clock may be set.
	maxRenewalSleep = time.Hour
)

// renewCertificates renews this host's certificates before they end, until ctx
// ends. API server, agent and proxy follow the files; anyone who copied a
// kubeconfig has to copy it again.
func (u *up) renewCertificates(ctx context.Context) error {
	for {
		now := time.Now()
		if ends := *u.ends.Load(); now.Before(ends[0].Renewal) {
			timer := time.NewTimer(min(ends[0].Renewal.Sub(now), maxRenewalSleep))
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-timer.C:
			}
			continue
		}
		files, wrote, err := u.certificates(now)
		if err != nil {
			return fmt.Errorf("renewing certificates: %w", err)
		}
		if wrote == 0 {
			return fmt.Errorf("renewing certificates: %s should be renewed and was not", files.Ends[0].Name)
		}
		u.ends.Store(&files.Ends)
		u.log.Info("renewed certificates", "count", wrote, "next", files.Ends[0].Name, "nextEnd", files.Ends[0].End)
	}
}

// servingConfig tells the controllers who signs what agents serve with, and
// what no agent may have.
func (u *up) servingConfig(cfg *workload.Config) (err error) {
	if cfg.ServingSigningCert, err = os.ReadFile(u.files.AgentCA.Cert); err != nil {
		return fmt.Errorf("reading the agents' CA: %w", err)
	}
	if cfg.ServingSigningKey, err = os.ReadFile(u.files.AgentCA.Key); err != nil {
		return fmt.Errorf("reading the key of the agents' CA: %w", err)
	}
	services, err := u.serviceCIDRs()
	if err != nil {
		return err
	}
	cfg.Serving = certificate.ServingRules{
		ClusterDomain: u.ClusterDomain, ServiceCIDRs: services, ServerNames: append(u.serverNames(), u.ServerNames...),
		Manual: u.ManualServing,
	}
	return nil
}
