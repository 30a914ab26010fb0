package strict

import (
	"strings"
	"testing"
	"time"
)

type inner struct {
	Deep int      `json:"deep"`
	For  Duration `json:"for"`
}

type outer struct {
	inner `json:",inline"`
	Name  string            `json:"name"`
	List  []inner           `json:"list"`
	Free  map[string]string `json:"free"`
	One   *inner            `json:"one"`
	own   int
}

func TestUnmarshal(t *testing.T) {
	var v outer
	if err := Unmarshal([]byte("name: x\ndeep: 3\nlist: [{deep: 1, for: 90s}]\nfree: {any: thing}\none: {deep: 2}"), &v); err != nil {
		t.Fatal(err)
	}
	if v.Deep != 3 || v.List[0].For.D() != 90*time.Second || v.Free["any"] != "thing" || v.One.Deep != 2 || v.own != 0 {
		t.Errorf("%+v", v)
	}
	if b, err := v.List[0].For.MarshalJSON(); err != nil || string(b) != `"1m30s"` {
		t.Errorf("%s, %v", b, err)
	}
	for text, want := range map[string]string{
		"nam: x":                  "nam is not a field: allowed are deep, for, free, list, name, one",
		"own: 1":                  "own is not a field",
		"list: [{deep: 1, a: 2}]": "list[0].a is not a field: allowed are deep, for",
		"one: {b: 2}":             "one.b is not a field",
		"list: [{deep: many}]":    "is a string: allowed is int",
		"for: 90":                 "write it as text with a unit",
		"for: -1s":                "not negative",
		"name: x\nname: y":        "already set",
		"name: [":                 "yaml",
	} {
		if err := Unmarshal([]byte(text), &outer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %q", text, err, want)
		}
	}
}
