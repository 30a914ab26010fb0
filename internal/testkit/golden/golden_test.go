package golden

import "testing"

func TestDifference(t *testing.T) {
	for _, c := range []struct{ want, got, says string }{
		{"a\nb\n", "a\nc\n", "line 2 on\nwant:\nb\n\ngot:\nc\n"},
		{"a", "a\n", "line 1 on\nwant:\na\ngot:\na\n"},
		{"a\nb\n", "a\n", "line 2 on\nwant:\nb\n\ngot:\n"},
		{"a", "", "line 1 on\nwant:\na\ngot:\n"},
	} {
		if says := difference(c.want, c.got); says != c.says {
			t.Errorf("%q and %q: %q, want %q", c.want, c.got, says, c.says)
		}
	}
}
