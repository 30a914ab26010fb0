// Command wrap breaks lines of Go files that are wider than 140 columns, and
// leaves what they mean alone: after commas and operators, and inside long
// strings. It fills comments that are wider than 80 columns. It names lines that
// it cannot break.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"go/scanner"
	"go/token"
	"os"
	"sort"
	"strings"
)

const W = 140

func width(s string) int { return len([]rune(strings.ReplaceAll(s, "\t", "    "))) }

type tk struct {
	off, end int
	tok      token.Token
	lit      string
}

func main() {
	for _, f := range os.Args[1:] {
		text, err := os.ReadFile(f)
		if err != nil {
			panic(err)
		}
		orig := text
		text = []byte(reflow(string(text)))
		for round := 0; round < 12; round++ {
			n, changed := wrap(text)
			if !changed {
				break
			}
			out, err := format.Source(n)
			if err != nil {
				fmt.Println("bad", f, err)
				break
			}
			text = out
		}
		if !bytes.Equal(orig, text) {
			os.WriteFile(f, text, 0o644)
		}
		for i, l := range strings.Split(string(text), "\n") {
			if width(l) > W {
				fmt.Printf("left %s:%d %d\n", f, i+1, width(l))
			}
		}
	}
}

func tokens(text []byte) []tk {
	fs := token.NewFileSet()
	file := fs.AddFile("x", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	var out []tk
	for {
		p, t, lit := s.Scan()
		if t == token.EOF {
			break
		}
		off := file.Offset(p)
		n := len(lit)
		if n == 0 || t.IsOperator() {
			n = len(t.String())
		}
		if t == token.SEMICOLON && lit == "\n" {
			n = 0
		}
		out = append(out, tk{off, off + n, t, lit})
	}
	return out
}

type edit struct {
	off, del int
	ins      string
}

func wrap(text []byte) ([]byte, bool) {
	toks := tokens(text)
	// line starts
	starts := []int{0}
	for i, b := range text {
		if b == '\n' {
			starts = append(starts, i+1)
		}
	}
	var edits []edit
	depthAt := 0
	_ = depthAt
	for li, st := range starts {
		end := len(text)
		if li+1 < len(starts) {
			end = starts[li+1] - 1
		}
		line := string(text[st:end])
		if width(line) <= W {
			continue
		}
		a := sort.Search(len(toks), func(i int) bool { return toks[i].off >= st })
		b := sort.Search(len(toks), func(i int) bool { return toks[i].off >= end })
		if a > 0 && toks[a-1].tok == token.STRING && toks[a-1].end > st && toks[a-1].lit[0] == '`' {
			// inside a raw string
			pos := -1
			lim := min(toks[a-1].end, end)
			for o := st + 20; o < lim-4; o++ {
				if (text[o] == ' ' || text[o] == ',') && width(string(text[st:o+1]))+3 <= W {
					pos = o + 1
				}
			}
			if pos > 0 && width(string(text[st:lim])) > W-2 {
				edits = append(edits, edit{pos, 0, "` +\n`"})
				continue
			}
		}
		lt := toks[a:b]
		if len(lt) == 0 {
			continue
		}
		if e, ok := breakLine(text, st, end, lt); ok {
			edits = append(edits, e...)
		}
	}
	if len(edits) == 0 {
		return text, false
	}
	sort.Slice(edits, func(i, j int) bool { return edits[i].off > edits[j].off })
	for _, e := range edits {
		text = append(append(append([]byte{}, text[:e.off]...), e.ins...), text[e.off+e.del:]...)
	}
	return text, true
}

func breakLine(text []byte, st, end int, lt []tk) ([]edit, bool) {
	col := func(off int) int { return width(string(text[st:off])) }
	// trailing comment
	for i, t := range lt {
		if t.tok == token.COMMENT && strings.HasPrefix(t.lit, "//") && !strings.HasPrefix(t.lit, "//nolint") && i > 0 {
			line := string(text[st:t.off])
			ind := line[:len(line)-len(strings.TrimLeft(line, "\t "))]
			if strings.TrimSpace(line) == "" {
				return nil, false
			}
			body := strings.TrimRight(line, " \t")
			return []edit{{st, end - st, ind + t.lit + "\n" + body}}, true
		}
		if t.tok == token.COMMENT && i == 0 {
			return nil, false
		}
	}
	best, bestCost := -1, 1<<30
	depth, braces := 0, 0
	_ = braces
	for i, t := range lt {
		switch t.tok {
		case token.LPAREN, token.LBRACK, token.LBRACE:
			depth++
		case token.RPAREN, token.RBRACK, token.RBRACE:
			depth--
		}
		if i+1 >= len(lt) || lt[i+1].tok == token.SEMICOLON && lt[i+1].lit == "\n" || lt[i+1].tok == token.COMMENT {
			continue
		}
		extra := -1
		switch t.tok {
		case token.COMMA:
			extra = 0
		case token.LAND, token.LOR:
			extra = 5
		case token.ADD:
			// binary only: previous token is an operand
			if i > 0 && (lt[i-1].tok == token.STRING || lt[i-1].tok == token.IDENT || lt[i-1].tok == token.RPAREN ||
				lt[i-1].tok == token.RBRACK) {
				extra = 20
			}
		case token.LPAREN:
			if lt[i+1].tok != token.RPAREN {
				extra = 45
			}
		case token.LBRACE:
			if lt[i+1].tok != token.RBRACE {
				extra = 55
			}
		case token.COLON:
			if i > 0 && (lt[i-1].tok == token.STRING || lt[i-1].tok == token.IDENT) && depth > 0 && col(t.end) > 40 {
				extra = 60
			}
		case token.ASSIGN, token.DEFINE:
			extra = 70
		}
		if extra < 0 {
			continue
		}
		c := col(t.end)
		if c > W || c < 30 {
			continue
		}
		d := depth
		if t.tok == token.LPAREN || t.tok == token.LBRACE {
			d--
		}
		cost := d*22 + extra + (W-c)*7/10
		if cost < bestCost {
			best, bestCost = i, cost
		}
	}
	// a string literal that itself must be cut
	cutAt := func() ([]edit, bool) {
		for i, t := range lt {
			if t.tok != token.STRING {
				continue
			}
			q := t.lit[:1]
			e := t.end
			if e > end {
				e = end + 8
			}
			if col(min(e, end)) <= W-1 || col(t.off) > W-30 {
				continue
			}
			// struct tags and imports cannot be cut
			if i > 0 && lt[i-1].tok == token.IMPORT {
				return nil, false
			}
			pos := -1
			for o := t.off + 12; o < e-8; o++ {
				if (text[o] == ' ' || text[o] == ',') && text[o-1] != '\\' && col(o+1)+3 <= W {
					pos = o + 1
				}
			}
			if pos < 0 {
				return nil, false
			}
			ins := q + " +\n\t" + q
			// within a concatenation or an argument: parenthesise nothing
			return []edit{{pos, 0, ins}}, true
		}
		return nil, false
	}
	if best < 0 || bestCost > 110 {
		if e, ok := cutAt(); ok {
			return e, ok
		}
	}
	if best < 0 {
		return nil, false
	}
	t := lt[best]
	off := t.end
	del := 0
	for off+del < end && text[off+del] == ' ' {
		del++
	}
	return []edit{{off, del, "\n"}}, true
}
