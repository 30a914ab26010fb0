// Package install puts berth onto a host as a service and takes it away again.
// Plan is pure and says which files there shall be; host.go writes them below a
// root directory and remembers them, so that Uninstall leaves nothing.
package install

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Places of what is installed.
const (
	libDir     = "/usr/local/lib/berth"
	binary     = "/usr/local/bin/berth"
	configFile = "/etc/berth/config.yaml"
	recordFile = "/etc/berth/installed.json"
	unitFile   = "/etc/systemd/system/berth.service"
	scriptFile = "/etc/init.d/berth"
	scriptLog  = "/var/log/berth.log"
)

// Options say what shall be installed.
type Options struct {
	// Role is the command that the service runs: up, server or join.
	Role string
	// Init is systemd, openrc, or empty for no service.
	Init string
	// Bundle holds berth and the programs it runs; Programs are its files,
	// relative to it.
	Bundle   string
	Programs []string
	// Settings are flags, as config.yaml holds them; nil keeps the file.
	Settings map[string]any
	// Completions are scripts by shell: bash, zsh, fish.
	Completions map[string]string
}

// fileSpec is one file that there shall be.
type fileSpec struct {
	Path string
	Mode fs.FileMode
	// Text is what it holds, Source the file it is a copy of, Target what it
	// links to: one of the three.
	Text, Source, Target string
}

// Plan returns the files of an installation, in the order they are written.
func Plan(o Options) []fileSpec {
	var files []fileSpec
	for _, p := range o.Programs {
		files = append(files, fileSpec{Path: libDir + "/" + p, Source: o.Bundle + "/" + p})
	}
	files = append(files, fileSpec{Path: binary, Target: "../lib/berth/berth"})
	if o.Settings != nil {
		files = append(files, fileSpec{Path: configFile, Mode: 0o600, Text: configText(o.Role, o.Settings)})
	}
	switch o.Init {
	case "systemd":
		files = append(files, fileSpec{Path: unitFile, Mode: 0o644, Text: unit(o.Role)})
	case "openrc":
		files = append(files, fileSpec{Path: scriptFile, Mode: 0o755, Text: script(o.Role)})
	}
	for _, shell := range slices.Sorted(maps.Keys(o.Completions)) {
		if path := completionFiles[shell]; path != "" {
			files = append(files, fileSpec{Path: path, Mode: 0o644, Text: o.Completions[shell]})
		}
	}
	return files
}

// completionFiles are where shells look beside what packages own.
var completionFiles = map[string]string{
	"bash": "/usr/local/share/bash-completion/completions/berth",
	"zsh":  "/usr/local/share/zsh/site-functions/_berth",
	"fish": "/usr/local/share/fish/vendor_completions.d/berth.fish",
}

func configText(role string, settings map[string]any) string {
	head := "# Flags of `berth " + role + "`, without dashes in front. Flags of the command line and BERTH_FLAG_NAME\n" +
		"# in the environment win over them. `berth " + role + " --help` lists them.\n"
	if len(settings) == 0 {
		return head + "{}\n"
	}
	text, err := yaml.Marshal(settings)
	if err != nil { // flags are texts and lists of texts
		panic(err)
	}
	return head + string(text)
}

// unit is the systemd service; docs/service.md says why each line is there.
func unit(role string) string {
	return fmt.Sprintf(`# Written by berth install. See docs/service.md.
[Unit]
Description=berth
Documentation=https://github.com/berth-dev/berth
Wants=network-online.target
After=network-online.target dbus.service

[Service]
Type=notify
ExecStart=%s %s --config %s
# A first start makes certificates and imports images.
TimeoutStartSec=10min
Restart=always
RestartSec=2s
# Containers and their runtime go on while berth restarts or is stopped:
# berth down ends them.
KillMode=process
Delegate=yes
TasksMax=infinity
LimitNOFILE=1048576
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`, binary, role, configFile)
}

// script is the OpenRC service.
func script(role string) string {
	return fmt.Sprintf(`#!/sbin/openrc-run
# Written by berth install. See docs/service.md.
name="berth"
description="berth %[2]s"
supervisor="supervise-daemon"
command="%[1]s"
command_args="%[2]s --config %[3]s"
output_log="%[4]s"
error_log="%[4]s"
respawn_delay=2
respawn_max=0
rc_ulimit="-n 1048576 -u unlimited"

depend() {
	need net
	use dns logger
	want cgroups
	after firewall
}
`, binary, role, configFile, scriptLog)
}

// secrets are settings whose values are not shown.
var secrets = []string{"token"}

// Shown is a file as --dry-run prints it.
func (f fileSpec) Shown() string {
	switch {
	case f.Source != "":
		return fmt.Sprintf("# %s: a copy of %s\n", f.Path, f.Source)
	case f.Target != "":
		return fmt.Sprintf("# %s: a link to %s\n", f.Path, f.Target)
	}
	text := f.Text
	if strings.Contains(f.Path, "completion") || strings.Contains(f.Path, "site-functions") {
		text = fmt.Sprintf("(%d lines of completion)\n", strings.Count(text, "\n"))
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		key, _, _ := strings.Cut(line, ":")
		if f.Path == configFile && slices.Contains(secrets, key) {
			line = key + ": (not shown)\n"
		}
		b.WriteString(line)
	}
	return fmt.Sprintf("# %s, mode %04o\n%s", f.Path, f.Mode, b.String())
}
