package container

import "strings"

// expandVariables replaces $(NAME) by lookup(NAME). A reference without a value stays
// as written, "$$" is one dollar sign, and anything else stays as it is.
func expandVariables(s string, lookup func(name string) (string, bool)) string {
	out, _ := expand(s, lookup)
	return out
}

// expandStrict is Expand that reports the first name without a value.
func expandStrict(s string, lookup func(name string) (string, bool)) (out, missing string) {
	return expand(s, lookup)
}

func expand(s string, lookup func(name string) (string, bool)) (out, missing string) {
	next := strings.IndexByte(s, '$')
	if next < 0 {
		return s, ""
	}
	var b strings.Builder
	b.Grow(len(s))
	for next >= 0 {
		b.WriteString(s[:next])
		s = s[next+1:]
		switch {
		case s == "":
			b.WriteByte('$')
		case s[0] == '$':
			b.WriteByte('$')
			s = s[1:]
		case s[0] != '(':
			// The character after a lone dollar is literal even when it would
			// open something itself.
			b.WriteByte('$')
			b.WriteByte(s[0])
			s = s[1:]
		default:
			end := strings.IndexByte(s, ')')
			if end < 0 {
				b.WriteString("$(")
				s = s[1:]
				break
			}
			name := s[1:end]
			if v, ok := lookup(name); ok {
				b.WriteString(v)
			} else {
				if missing == "" {
					missing = name
				}
				b.WriteString("$" + s[:end+1])
			}
			s = s[end+1:]
		}
		next = strings.IndexByte(s, '$')
	}
	b.WriteString(s)
	return b.String(), missing
}
