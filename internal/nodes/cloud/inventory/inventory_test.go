package inventory

import (
	"strings"
	"testing"
)

const head = "apiVersion: berth.dev/v1alpha1\nkind: MachineInventory\n"

func TestParseRefusesAndNamesEveryFault(t *testing.T) {
	for _, c := range []struct{ name, doc, want string }{
		{"another kind", "apiVersion: v1\nkind: List\n", `apiVersion "v1", kind "List": must be berth.dev/v1alpha1 and MachineInventory`},
		{"an unknown field", head + "machines:\n- {name: a, providerID: x://1, zoen: b}", `unknown field "zoen"`},
		{"no machines", head + "machines: []", "set empty: true"},
		{"empty and not", head + "empty: true\nmachines:\n- {name: a, providerID: x://1}", "empty is true, but there are machines"},
		{"a bad state", head + "machines:\n- {name: a, providerID: x://1, state: gone}",
			`machines[0] ("a"): state "gone": allowed are running and stopped`},
		{"a bad ID", head + "machines:\n- {name: a, providerID: one}", `machines[0] ("a"): providerID "one": must be like`},
		{"two of a name", head + "machines:\n- {name: a, providerID: x://1}\n- {name: a, providerID: x://2}",
			`machines[1] ("a"): name: another machine has it`},
		{"two of an ID", head + "machines:\n- {name: a, providerID: x://1}\n- {name: b, providerID: x://1}",
			`machines[1] ("b"): providerID "x://1": machine "a" has it`},
		{"a bad address", head + "machines:\n- {name: a, providerID: x://1, addresses: [{type: InternalIP, address: ten}]}",
			`addresses[0]: "ten" is no IP address`},
		{"a bad address type", head + "machines:\n- {name: a, providerID: x://1, addresses: [{type: IP, address: 10.0.0.1}]}",
			`addresses[0]: type "IP": allowed are`},
		{"a bad zone", head + "machines:\n- {name: a, providerID: x://1, zone: 'b c'}", `zone "b c": must be a label value`},
		{"not even YAML", "\t", "machine inventory:"},
		{"every fault", head + "machines:\n- {name: A, providerID: one}", "machines[0] (\"A\"): providerID"},
	} {
		_, err := parse([]byte(c.doc))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", c.name, err, c.want)
		}
	}
	if _, err := parse([]byte(head + "empty: true")); err != nil {
		t.Errorf("a list that is meant to be empty: %v", err)
	}
}

func TestSourceMustBeHTTPS(t *testing.T) {
	for doc, want := range map[string]string{
		"apiVersion: berth.dev/v1alpha1\nkind: MachineInventorySource\nurl: http://x\n":               "must begin with https://",
		"apiVersion: berth.dev/v1alpha1\nkind: MachineInventorySource\nurl: https://x\nretry: true\n": `unknown field "retry"`,
		"apiVersion: berth.dev/v1alpha1\nkind: MachineInventorySource\nurl: https://x\ninterval: 1\n": "",
	} {
		_, ok, err := parseSource([]byte(doc))
		if !ok || want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", doc, err, want)
		}
	}
	if _, err := newLoader("http://x"); err == nil {
		t.Error("http was taken")
	}
	if _, err := newRemote(source{URL: "https://x", Interval: "1"}); err == nil {
		t.Error("an interval of 1 was taken")
	}
}
