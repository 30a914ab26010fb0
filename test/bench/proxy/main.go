// Command proxy measures `berth proxy` against a stand-in for the API server:
// start to synced, one endpoint change, memory, restart, and the rate of new
// connections, each against the size of the cluster. Run it as root.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
)

var (
	program = flag.String("berth", "bin/berth", "program to measure")
	changes = flag.Int("changes", 2000, "endpoint changes to measure at each size")
	only    = flag.String("only", "", "measure only this: start, change or rate")
	size    = flag.String("size", "", "measure only the start of this size, such as 5000x10")
	hold    = flag.Duration("hold", 0, "keep every first start for so long, to look at it")
	further = flag.String("args", "", "further flags of the proxy")
)

func main() {
	flag.Parse()
	log.SetFlags(0)
	if *only == "" || *only == "start" {
		fmt.Println("| Services x endpoints | start to synced (CPU) | cold sync alone | RSS (anonymous) synced / 1 s / 10 s later " +
			"| largest | restart: adopted, rows rewritten |")
		fmt.Println("|---|---|---|---|---|---|")
		for _, s := range starts {
			if *size == "" || *size == fmt.Sprintf("%dx%d", s.services, s.endpoints) {
				s.measure()
			}
		}
	}
	if *only == "" || *only == "change" {
		latency()
	}
	if *only == "" || *only == "rate" {
		rate(10000)
	}
	verdict()
}

// inNS runs f on a thread of its own in a network namespace.
func inNS(ns netns.NsHandle, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends here
		if err := netns.Set(ns); err != nil {
			log.Fatal(err)
		}
		f()
	}()
	<-done
}

func newNS() netns.NsHandle {
	ch := make(chan netns.NsHandle)
	go func() {
		runtime.LockOSThread()
		ns, err := netns.New()
		if err != nil {
			log.Fatal("making a network namespace (run as root): ", err)
		}
		ch <- ns
	}()
	ns := <-ch
	inNS(ns, func() { command("ip", "link", "set", "lo", "up") })
	return ns
}

func command(args ...string) {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		log.Fatalf("%v: %v: %s", args, err, out)
	}
}

// bed is a namespace with an API and a proxy in it.
type bed struct {
	ns    netns.NsHandle
	api   *api
	url   string
	cmd   *exec.Cmd
	said  chan string
	began time.Time
}

func newBed(services, endpoints int) *bed {
	b := &bed{ns: newNS(), api: newAPI(services, endpoints)}
	inNS(b.ns, func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		b.url = "http://" + l.Addr().String()
		go b.api.serve(l)
	})
	return b
}

var synced = regexp.MustCompile(`msg="(wrote|adopted) the service rules" family=IPv4 .*added=(\d+) deleted=(\d+) took=(\S+)`)

// run starts the proxy and returns what it said when IPv4 was synced.
func (b *bed) run() (took time.Duration, line []string) {
	b.said = make(chan string, 1)
	b.began = time.Now()
	inNS(b.ns, func() {
		args := []string{"proxy", "--master", b.url, "--hostname-override", nodeName, "--socket", ""}
		b.cmd = exec.Command(*program, append(args, strings.Fields(*further)...)...)
		out, err := b.cmd.StderrPipe()
		if err != nil {
			log.Fatal(err)
		}
		if err := b.cmd.Start(); err != nil {
			log.Fatal(err)
		}
		go b.read(out)
	})
	select {
	case s := <-b.said:
		return time.Since(b.began), synced.FindStringSubmatch(s)
	case <-time.After(2 * time.Minute):
		log.Fatal("the proxy did not sync in two minutes")
	}
	return 0, nil
}

func (b *bed) read(out io.Reader) {
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		if synced.MatchString(sc.Text()) {
			b.said <- sc.Text()
		} else if strings.Contains(sc.Text(), "level=ERROR") {
			log.Print(sc.Text())
		}
	}
}

func (b *bed) stop() {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	_ = b.cmd.Wait()
}

// memory is what a process holds, in MiB.
type memory struct{ all, anon, peak int }

func (m memory) String() string { return fmt.Sprintf("%d (%d)", m.all, m.anon) }

// rss is the proxy's resident memory, the anonymous part of it, and the most it
// ever was.
func (b *bed) rss() (m memory) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(b.cmd.Process.Pid), "status"))
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range strings.Split(string(data), "\n") {
		w := strings.Fields(l)
		if len(w) < 2 {
			continue
		}
		n, _ := strconv.Atoi(w[1])
		switch w[0] {
		case "VmRSS:":
			m.all = n / 1024
		case "RssAnon:":
			m.anon = n / 1024
		case "VmHWM:":
			m.peak = n / 1024
		}
	}
	return m
}

// cpuTime is the CPU time the proxy has used so far; a busy machine changes it
// less than what the clock says.
func (b *bed) cpuTime() time.Duration {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(b.cmd.Process.Pid), "stat"))
	if err != nil {
		log.Fatal(err)
	}
	w := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	user, _ := strconv.Atoi(w[11])
	kernel, _ := strconv.Atoi(w[12])
	return time.Duration(user+kernel) * 10 * time.Millisecond
}

// starting is a size of cluster with its bars; 0 is no bar.
type starting struct {
	services, endpoints int
	// start and cold are seconds, memory is MiB.
	start, cold float64
	memory      int
	// restart: the bars of a restart apply.
	restart bool
}

var starts = []starting{
	{services: 1000, endpoints: 10, start: 0.3, memory: 45},
	{services: 5000, endpoints: 10, start: 0.6, memory: 70},
	{services: 10000, endpoints: 10, memory: 120, restart: true},
	{services: 5000, endpoints: 50, cold: 2},
	{services: 45000, endpoints: 1, cold: 3},
}

// measure starts a proxy twice.
func (s starting) measure() {
	b := newBed(s.services, s.endpoints)
	defer b.ns.Close()
	took, line := b.run()
	used, atOnce := b.cpuTime(), b.rss()
	time.Sleep(time.Second)
	soon := b.rss()
	time.Sleep(9 * time.Second) // what stays once the garbage of the start is gone
	later := b.rss()
	time.Sleep(*hold)
	b.stop()
	again, adopted := b.run()
	b.stop()
	size := fmt.Sprintf("%d x %d", s.services, s.endpoints)
	fmt.Printf("| %s | %.2f s (%.2f s) | %s | %s / %s / %s MiB | %d MiB | %.2f s: %s, %s added, %s deleted |\n", size, took.Seconds(),
		used.Seconds(), line[4],
		atOnce, soon, later, later.peak, again.Seconds(), adopted[1], adopted[2], adopted[3])
	if s.start > 0 {
		check(took.Seconds() <= s.start, "start to synced, "+size, fmt.Sprintf("%.1f s", s.start), "%.2f s", took.Seconds())
	}
	if s.cold > 0 {
		cold, err := time.ParseDuration(line[4])
		check(err == nil && cold.Seconds() <= s.cold, "cold sync "+size+", from synced caches", fmt.Sprintf("%.0f s", s.cold), "%.2f s",
			cold.Seconds())
	}
	if s.memory > 0 {
		check(later.all <= s.memory, "RSS 10 s after the sync, "+size, fmt.Sprintf("%d MiB", s.memory),
			"%d MiB (a second after: %d, at most: %d)", later.all, soon.all, later.peak)
	}
	if s.restart {
		check(again.Seconds() <= 2 && adopted[1] == "adopted" && adopted[2] == "0" && adopted[3] == "0", "restart with unchanged "+size+
			": adopted, rows rewritten", "2 s, 0",
			"%s in %.2f s, %s + %s", adopted[1], again.Seconds(), adopted[2], adopted[3])
	}
}
