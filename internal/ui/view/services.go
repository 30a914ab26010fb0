package view

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/why"
)

// serviceLine is a line of the list of Services.
type serviceLine struct {
	Namespace, Name, Type string
	Addresses             []string
	Ports                 []string
	Ready, Of             int
	State                 stateWord
	Created               time.Time
}

// servicesPage is the page of Services.
type servicesPage struct {
	Query      Query
	Namespaces []string
	Page       pageRows[serviceLine]
	Complete   bool
}

const slicesResource = "endpointslices.discovery.k8s.io"

// ServicesView lists the Services that match, by namespace and name.
func ServicesView(s *Snapshot, r callerRights, q Query, _ time.Time) servicesPage {
	l := servicesPage{Query: q, Namespaces: namespaceNames(s, r)}
	p := paged[*v1.Service]{after: q.After}
	l.Complete = s.within(r, "services", q.Namespace, func(ns string) {
		for _, o := range s.Services(ns) {
			if !contains(o.Name, q.Text) {
				continue
			}
			if level := serviceRow(s, r, o).State.Level; q.Wrong && level != Warn && level != Bad {
				continue
			}
			p.add(o.Namespace+"/"+o.Name, o)
		}
	})
	l.Page = pageOf(&p, func(o *v1.Service) serviceLine { return serviceRow(s, r, o) })
	return l
}

func serviceRow(s *Snapshot, r callerRights, o *v1.Service) serviceLine {
	row := serviceLine{Namespace: o.Namespace, Name: o.Name, Type: string(o.Spec.Type), Created: o.CreationTimestamp.Time}
	row.Addresses = append(row.Addresses, o.Spec.ClusterIPs...)
	row.Addresses = append(row.Addresses, o.Spec.ExternalIPs...)
	for _, in := range o.Status.LoadBalancer.Ingress {
		row.Addresses = append(row.Addresses, cmp.Or(in.IP, in.Hostname))
	}
	if o.Spec.Type == v1.ServiceTypeExternalName {
		row.Addresses = []string{o.Spec.ExternalName}
	}
	for _, p := range o.Spec.Ports {
		text := strconv.Itoa(int(p.Port)) + "/" + string(p.Protocol)
		if p.NodePort != 0 {
			text += " (node port " + strconv.Itoa(int(p.NodePort)) + ")"
		}
		row.Ports = append(row.Ports, text)
	}
	if !may(r, slicesResource, o.Namespace) {
		row.State = stateWord{"Endpoints not listed", Idle}
		return row
	}
	for _, slice := range s.Slices(o.Namespace, o.Name) {
		for i := range slice.Endpoints {
			row.Of++
			if endpointReady(&slice.Endpoints[i]) {
				row.Ready++
			}
		}
	}
	switch {
	case o.Spec.Type == v1.ServiceTypeExternalName:
		row.State = stateWord{"External name", Idle}
	case row.Ready > 0:
		row.State = stateWord{"Serving", Good}
	case len(o.Spec.Selector) == 0 && row.Of == 0:
		row.State = stateWord{"No selector", Idle}
	default:
		row.State = stateWord{"No ready endpoint", Warn}
	}
	return row
}

// endpointReady: no statement counts as ready, as upstream has it.
func endpointReady(e *discoveryv1.Endpoint) bool {
	return e.Conditions.Ready == nil || *e.Conditions.Ready
}

// servicePage is the page of one Service.
type servicePage struct {
	Row       serviceLine
	Facts     []journal.Fact
	Ports     []portRow
	Endpoints pageRows[endpointRow]
	Answer    *why.Answer
	// Rules are what the proxy of the server's host programs.
	Rules []string
	Story []storyEntry
}

// portRow is a port of a Service and where it leads.
type portRow struct{ Name, Front, Target, NodePort string }

// endpointRow is an address behind a Service.
type endpointRow struct {
	Address, Ports, Node, Zone string
	Pod                        journal.Ref // empty where it is no pod that the caller may see
	State                      stateWord
}

// ServiceView is one Service; ok is false where there is none that the caller may see.
func ServiceView(s *Snapshot, r callerRights, namespace, name string, q Query, _ time.Time) (v servicePage, ok bool) {
	if !may(r, "services", namespace) {
		return v, false
	}
	o := s.Service(namespace, name)
	if o == nil {
		return v, false
	}
	ref := journal.Ref{Kind: "Service", Namespace: namespace, Name: name}
	v = servicePage{Row: serviceRow(s, r, o), Answer: s.answer(ref), Facts: serviceFacts(o)}
	for _, p := range o.Spec.Ports {
		port := portRow{Name: p.Name, Front: fmt.Sprintf("%d/%s", p.Port, p.Protocol), Target: p.TargetPort.String()}
		if p.NodePort != 0 {
			port.NodePort = strconv.Itoa(int(p.NodePort))
		}
		v.Ports = append(v.Ports, port)
	}
	if may(r, slicesResource, namespace) {
		v.Endpoints = endpoints(s, r, namespace, name, q)
		if s.Rules != nil {
			v.Rules = s.Rules(namespace, name)
		}
	}
	v.Story = story(s.events("Service", namespace, name), s.decisions(r, ref))
	return v, true
}

// endpoints are those of all slices, those that get traffic first.
func endpoints(s *Snapshot, r callerRights, namespace, name string, q Query) pageRows[endpointRow] {
	p := paged[endpointRow]{after: q.After}
	for _, slice := range s.Slices(namespace, name) {
		var ports []string
		for _, port := range slice.Ports {
			if port.Port != nil && port.Protocol != nil {
				ports = append(ports, fmt.Sprintf("%d/%s", *port.Port, *port.Protocol))
			}
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			row := endpointRow{Address: strings.Join(e.Addresses, ", "), Ports: strings.Join(ports, ", "), State: endpointState(e)}
			if e.NodeName != nil {
				row.Node = *e.NodeName
			}
			if e.Zone != nil {
				row.Zone = *e.Zone
			}
			if t := e.TargetRef; t != nil && t.Kind == "Pod" && may(r, "pods", namespace) {
				row.Pod = journal.Ref{Kind: "Pod", Namespace: namespace, Name: t.Name}
			}
			p.add(fmt.Sprintf("%d/%s/%s", b2i(row.State.Level != Good), row.Address, slice.Name), row)
		}
	}
	return pageOf(&p, func(e endpointRow) endpointRow { return e })
}

func endpointState(e *discoveryv1.Endpoint) stateWord {
	serving, ending := e.Conditions.Serving, e.Conditions.Terminating
	switch {
	case ending != nil && *ending && serving != nil && *serving:
		return stateWord{"Terminating, serving", Warn}
	case ending != nil && *ending:
		return stateWord{"Terminating", Idle}
	case endpointReady(e):
		return stateWord{"Ready", Good}
	}
	return stateWord{"Not Ready", Bad}
}

// serviceFacts are the fields that decide where a packet goes.
func serviceFacts(o *v1.Service) (out []journal.Fact) {
	add := func(name, value string) {
		if value != "" {
			out = append(out, journal.Fact{Name: name, Value: value})
		}
	}
	var selector []string
	for k, v := range o.Spec.Selector {
		selector = append(selector, k+"="+v)
	}
	slices.Sort(selector)
	add("selector", strings.Join(selector, ", "))
	add("affinity", string(o.Spec.SessionAffinity))
	if o.Spec.InternalTrafficPolicy != nil {
		add("internal traffic", string(*o.Spec.InternalTrafficPolicy))
	}
	add("external traffic", string(o.Spec.ExternalTrafficPolicy))
	if o.Spec.TrafficDistribution != nil {
		add("distribution", *o.Spec.TrafficDistribution)
	}
	return out
}
