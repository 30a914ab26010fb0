package validate

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// handler is what probes and lifecycle hooks have in common.
type handler struct {
	exec  *v1.ExecAction
	http  *v1.HTTPGetAction
	tcp   *v1.TCPSocketAction
	grpc  *v1.GRPCAction
	sleep *v1.SleepAction
}

// check wants exactly one way to act. grace bounds a sleep, in seconds.
func (h handler) check(p *field.Path, grace *int64) errs {
	var all errs
	count := 0
	only := func(name string) bool {
		if count++; count > 1 {
			all = append(all, field.Forbidden(p.Child(name), "may not specify more than 1 handler type"))
			return false
		}
		return true
	}
	if h.exec != nil && only("exec") && len(h.exec.Command) == 0 {
		all = append(all, field.Required(p.Child("exec", "command"), ""))
	}
	if h.http != nil && only("httpGet") {
		all = append(all, httpGet(p.Child("httpGet"), h.http)...)
	}
	if h.tcp != nil && only("tcpSocket") {
		all = append(all, portOrName(p.Child("tcpSocket", "port"), h.tcp.Port)...)
	}
	if h.grpc != nil && only("grpc") {
		all = append(all, portNumber(p.Child("grpc", "port"), h.grpc.Port)...)
	}
	if h.sleep != nil && only("sleep") {
		longest := deref(grace)
		if h.sleep.Seconds < 0 || h.sleep.Seconds > longest {
			all = append(all, field.Invalid(p.Child("sleep"), h.sleep.Seconds,
				fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", longest)))
		}
	}
	if count == 0 {
		all = append(all, field.Required(p, "must specify a handler type"))
	}
	return all
}

func httpGet(p *field.Path, g *v1.HTTPGetAction) errs {
	all := present(p.Child("path"), g.Path)
	all = append(all, portOrName(p.Child("port"), g.Port)...)
	all = append(all, mustBeOneOf(p.Child("scheme"), g.Scheme, v1.URISchemeHTTP, v1.URISchemeHTTPS)...)
	for _, h := range g.HTTPHeaders {
		all = append(all, invalid(p.Child("httpHeaders"), h.Name, validation.IsHTTPHeaderName(h.Name))...)
	}
	return all
}

// probeKind says which of the rules differ.
type probeKind int

const (
	liveness probeKind = iota
	readiness
	startup
)

func probe(p *field.Path, probe *v1.Probe, kind probeKind, grace *int64) errs {
	if probe == nil {
		return nil
	}
	h := handler{exec: probe.Exec, http: probe.HTTPGet, tcp: probe.TCPSocket, grpc: probe.GRPC}
	all := h.check(p, grace)
	all = append(all, notNegative(p.Child("initialDelaySeconds"), probe.InitialDelaySeconds)...)
	all = append(all, notNegative(p.Child("timeoutSeconds"), probe.TimeoutSeconds)...)
	all = append(all, notNegative(p.Child("periodSeconds"), probe.PeriodSeconds)...)
	all = append(all, notNegative(p.Child("successThreshold"), probe.SuccessThreshold)...)
	all = append(all, notNegative(p.Child("failureThreshold"), probe.FailureThreshold)...)
	if own := probe.TerminationGracePeriodSeconds; own != nil {
		at := p.Child("terminationGracePeriodSeconds")
		if kind == readiness {
			all = append(all, field.Invalid(at, *own, "must not be set for readinessProbes"))
		} else {
			all = append(all, positive(at, *own)...)
		}
	}
	if kind != readiness && probe.SuccessThreshold != 1 {
		all = append(all, field.Invalid(p.Child("successThreshold"), probe.SuccessThreshold, "must be 1"))
	}
	return all
}

func lifecycle(p *field.Path, l *v1.Lifecycle, s *v1.PodSpec) errs {
	if l == nil {
		return nil
	}
	var all errs
	hook := func(name string, h *v1.LifecycleHandler) {
		if h != nil {
			all = append(all, handler{exec: h.Exec, http: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep}.check(p.Child(name),
				s.TerminationGracePeriodSeconds)...)
		}
	}
	hook("postStart", l.PostStart)
	hook("preStop", l.PreStop)
	if l.StopSignal != nil && s.OS == nil {
		all = append(all, field.Forbidden(p.Child("stopSignal"), "may not be set for containers with empty `spec.os.name`"))
	}
	return all
}
