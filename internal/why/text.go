package why

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berth-dev/berth/internal/journal"
)

// Width is the widest line that Write writes, in columns, as far as words let it.
const Width = 80

// Write writes an answer for a person: the cause first, then facts, remedies
// and the decisions, within 80 columns.
func (a *Answer) Write(out io.Writer) error {
	var b strings.Builder
	wrap(&b, "", "  ", a.Cause)
	b.WriteByte('\n')
	line := func(name, value string) { wrap(&b, fmt.Sprintf("  %-10s ", name), strings.Repeat(" ", 13), value) }
	line("object", refText(a.Object)+", "+string(a.State)+" ("+a.Code+")")
	if a.Holder != nil {
		line("held by", refText(*a.Holder))
	}
	if a.Field != "" {
		line("field", a.Field)
	}
	for _, f := range a.Facts {
		line(f.Name, f.Value)
	}
	for i, r := range a.Remedies {
		name := "do"
		if i > 0 {
			name = "or"
		}
		line(name, r)
	}
	if len(a.Sources) > 0 {
		line("read", strings.Join(a.Sources, ", "))
	}
	for _, u := range a.Unread {
		line("not read", u)
	}
	if len(a.Decisions) > 0 {
		b.WriteString("\ndecisions\n")
		var story strings.Builder
		if err := journal.WriteStory(&story, a.Decisions); err != nil {
			return err
		}
		for l := range strings.Lines(story.String()) {
			l = a.short(strings.TrimRight(l, "\n"))
			rest := strings.TrimLeft(l, " ")
			indent := l[:len(l)-len(rest)]
			wrap(&b, indent, indent+"    ", rest)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// short shortens the head of a decision: milliseconds are enough to read, and
// the object is the one that was asked about.
func (a *Answer) short(line string) string {
	stamp, rest, ok := strings.Cut(line, "  ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if !ok || err != nil {
		return line
	}
	return at.Format("2006-01-02 15:04:05.000") + "  " + strings.TrimPrefix(rest, refText(a.Object)+": ")
}

// wrap writes text after first, lines that follow after rest, each at most
// Width wide; a word that is wider alone stays whole, so that it can be copied.
func wrap(b *strings.Builder, first, rest, text string) {
	line, empty := first, true
	for _, word := range strings.Fields(text) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > Width {
			b.WriteString(line + "\n")
			line, empty = rest, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}
