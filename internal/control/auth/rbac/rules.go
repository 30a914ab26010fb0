// Package rbac decides whether RBAC objects allow a request.
//
// Index is the pure core: role and binding changes go in one by one, and a
// request is judged by looking only at what names the requester. Authorizer
// is the shell that feeds an Index from informers and guards it with a lock.
package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// place is where a resource rule applies. A rule's "pods/log" becomes
// {group, "pods", "log"}; a bare "*" resource keeps an empty subresource and
// covers every resource and subresource of the group.
type place struct{ group, resource, subresource string }

const star = "*"

// rule is the part of a PolicyRule left once its place is known.
type rule struct {
	verbs []string
	names []string // empty: every name
}

func (r *rule) covers(verb, name string) bool {
	if !slices.Contains(r.verbs, verb) && !slices.Contains(r.verbs, rbacv1.VerbAll) {
		return false
	}
	return len(r.names) == 0 || slices.Contains(r.names, name)
}

// ruleSet is one role's rules arranged by place, so that judging a request
// costs a handful of lookups however many rules the role has.
type ruleSet struct {
	source  []rbacv1.PolicyRule // as written; shared with the API object, never modified
	byPlace map[place][]rule
	paths   []pathRule
	// Which kinds of wildcard occur at all: absent ones cost no lookup.
	anyGroup, anyResource, anySubresource bool
}

type pathRule struct {
	verbs []string
	urls  []string
}

func compile(source []rbacv1.PolicyRule) *ruleSet {
	set := &ruleSet{source: source, byPlace: map[place][]rule{}}
	for i := range source {
		from := &source[i]
		if len(from.NonResourceURLs) > 0 {
			set.paths = append(set.paths, pathRule{verbs: from.Verbs, urls: from.NonResourceURLs})
		}
		to := rule{verbs: from.Verbs, names: from.ResourceNames}
		for _, group := range from.APIGroups {
			for _, resource := range from.Resources {
				at := split(group, resource)
				set.byPlace[at] = append(set.byPlace[at], to)
				set.anyGroup = set.anyGroup || group == rbacv1.APIGroupAll
				set.anyResource = set.anyResource || resource == rbacv1.ResourceAll
				set.anySubresource = set.anySubresource || at.resource == star && at.subresource != ""
			}
		}
	}
	return set
}

func split(group, resource string) place {
	base, sub, found := strings.Cut(resource, "/")
	if !found || sub == "" {
		return place{group, resource, ""}
	}
	return place{group, base, sub}
}

// target is a request as the rules see it, worked out once per request.
type target struct {
	verb, name string
	at         place  // the text "resource/subresource" taken apart like a rule's
	sub        string // the subresource as requested: what "*/sub" rules are held against
	path       string // set for non-resource requests only
}

func targetOf(a authorizer.Attributes) target {
	if !a.IsResourceRequest() {
		return target{verb: a.GetVerb(), path: a.GetPath()}
	}
	t := target{
		verb: a.GetVerb(), name: a.GetName(), sub: a.GetSubresource(),
		at: place{a.GetAPIGroup(), a.GetResource(), a.GetSubresource()},
	}
	// A review may name "pods/log" as a plain resource.
	if strings.IndexByte(t.at.resource, '/') >= 0 {
		text := t.at.resource
		if t.sub != "" {
			text += "/" + t.sub
		}
		t.at = split(t.at.group, text)
	}
	return t
}

func (s *ruleSet) allows(t *target, resource bool) bool {
	if !resource {
		return s.allowsPath(t)
	}
	if s.allowsIn(t, t.at.group) {
		return true
	}
	return s.anyGroup && t.at.group != star && s.allowsIn(t, star)
}

func (s *ruleSet) allowsIn(t *target, group string) bool {
	if anyCovers(s.byPlace[place{group, t.at.resource, t.at.subresource}], t) {
		return true
	}
	if s.anyResource && anyCovers(s.byPlace[place{group, star, ""}], t) {
		return true
	}
	return s.anySubresource && t.sub != "" && anyCovers(s.byPlace[place{group, star, t.sub}], t)
}

func anyCovers(rules []rule, t *target) bool {
	for i := range rules {
		if rules[i].covers(t.verb, t.name) {
			return true
		}
	}
	return false
}

func (s *ruleSet) allowsPath(t *target) bool {
	for i := range s.paths {
		p := &s.paths[i]
		if !slices.Contains(p.verbs, t.verb) && !slices.Contains(p.verbs, rbacv1.VerbAll) {
			continue
		}
		for _, url := range p.urls {
			if url == t.path || url == rbacv1.NonResourceAll {
				return true
			}
			if prefix, wild := strings.CutSuffix(url, star); wild && strings.HasPrefix(t.path, prefix) {
				return true
			}
		}
	}
	return false
}
