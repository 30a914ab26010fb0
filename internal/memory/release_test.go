package memory

import (
	"slices"
	"strings"
	"testing"
)

// TestProgramSpans: only what the program's file can give back goes; pages
// that a dynamic linker wrote before it sealed them do not.
func TestProgramSpans(t *testing.T) {
	const smaps = `00400000-00500000 r-xp 00000000 fe:00 42                       /usr/bin/berth
Size:               1024 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00500000-00600000 r--p 00100000 fe:00 42                       /usr/bin/berth
Anonymous:             0 kB
00600000-00610000 r--p 00200000 fe:00 42                       /usr/bin/berth
Anonymous:            16 kB
00610000-00620000 rw-p 00210000 fe:00 42                       /usr/bin/berth
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 43               /usr/lib/libc.so.6
Anonymous:             0 kB
7f0000002000-7f0000003000 r--p 00000000 00:00 0
Anonymous:             0 kB
`
	got, err := programSpans(strings.NewReader(smaps), "/usr/bin/berth")
	if want := []span{{0x400000, 0x500000}, {0x500000, 0x600000}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %x, %v", got, err)
	}
}

// TestRelease: the program goes on after its pages were given back.
func TestRelease(t *testing.T) {
	for range 3 {
		if err := Release(); err != nil {
			t.Fatal(err)
		}
	}
}
