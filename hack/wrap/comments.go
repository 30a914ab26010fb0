package main

import (
	"strings"
)

// C is how wide comments on lines of their own are filled; a paragraph without a
// line wider than tooWide is left alone.
const (
	C       = 80
	tooWide = 90
)

// reflow fills paragraphs of comments that are too wide. It leaves directives,
// lists, drawings and whatever else is indented as they are.
func reflow(text string) string {
	lines := strings.Split(text, "\n")
	var out []string
	for i := 0; i < len(lines); {
		indent, words, ok := prose(lines[i])
		if !ok {
			out = append(out, lines[i])
			i++
			continue
		}
		end, wide := i+1, width(lines[i]) > tooWide
		for ; end < len(lines); end++ {
			next, more, ok := prose(lines[end])
			if !ok || next != indent {
				break
			}
			words, wide = append(words, more...), wide || width(lines[end]) > tooWide
		}
		if wide {
			out = append(out, fill(indent, words)...)
		} else {
			out = append(out, lines[i:end]...)
		}
		i = end
	}
	return strings.Join(out, "\n")
}

// prose is the words of a line that is a comment of running text.
func prose(line string) (indent string, words []string, ok bool) {
	rest := strings.TrimLeft(line, "\t")
	text, ok := strings.CutPrefix(rest, "// ")
	if !ok || text == "" || strings.ContainsAny(text[:1], " \t-*#|+") || strings.HasPrefix(text, "Code generated") {
		return "", nil, false
	}
	return line[:len(line)-len(rest)], strings.Fields(text), true
}

func fill(indent string, words []string) (out []string) {
	line := indent + "//"
	for _, w := range words {
		if width(line)+1+len([]rune(w)) > C && line != indent+"//" {
			out = append(out, line)
			line = indent + "//"
		}
		line += " " + w
	}
	return append(out, line)
}
