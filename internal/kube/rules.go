package kube

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// ParseRules reads rules written one per line:
//
//	get,list,watch pods services deployments.apps/scale
//	get            configmaps = extension-apiserver-authentication
//	get            /healthz /livez/*
//
// Verbs come first; then resources, each with its group after the first dot
// ("pods" is in the core group, "*.*" is everything) and its subresource after
// a slash, or URL paths ("/**" is every path); then, after "=", the only names
// the rule is for.
// Resources of several groups on one line become one rule per group.
func ParseRules(text string) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		more, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("reading rule %q: %w", line, err)
		}
		rules = append(rules, more...)
	}
	return rules, nil
}

const everyPath = "/**"

func parseLine(line string) ([]rbacv1.PolicyRule, error) {
	line, names, restricted := strings.Cut(line, "=")
	words := strings.Fields(line)
	if len(words) < 2 {
		return nil, fmt.Errorf("verbs and at least one resource or path are required")
	}
	verbs := strings.Split(words[0], ",")
	if strings.HasPrefix(words[1], "/") {
		paths := words[1:]
		if paths[0] == everyPath {
			paths[0] = rbacv1.NonResourceAll
		}
		return []rbacv1.PolicyRule{{Verbs: verbs, NonResourceURLs: paths}}, nil
	}
	var rules []rbacv1.PolicyRule
	for _, word := range words[1:] {
		base, sub, _ := strings.Cut(word, "/")
		resource, group, _ := strings.Cut(base, ".")
		if resource == "" || strings.HasPrefix(word, "/") {
			return nil, fmt.Errorf("%q is not resource[.group][/subresource]", word)
		}
		if sub != "" {
			resource += "/" + sub
		}
		i := slices.IndexFunc(rules, func(r rbacv1.PolicyRule) bool { return r.APIGroups[0] == group })
		if i < 0 {
			i = len(rules)
			rules = append(rules, rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}})
			if restricted {
				rules[i].ResourceNames = strings.Fields(names)
			}
		}
		rules[i].Resources = append(rules[i].Resources, resource)
	}
	return rules, nil
}
