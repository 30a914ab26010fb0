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
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netns"

	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/nft"
)

var (
	binary  = flag.String("berth", "bin/berth", "program to measure")
	changes = flag.Int("changes", 2000, "endpoint changes to measure at each size")
	table   = "berth"
)

func main() {
	flag.Parse()
	log.SetFlags(0)
	fmt.Println("| Services x endpoints | start to synced | cold sync alone | RSS synced / later | restart: adopted, rows rewritten |")
	fmt.Println("|---|---|---|---|---|")
	for _, size := range [][2]int{{1000, 10}, {5000, 10}, {10000, 10}, {5000, 50}, {45000, 1}} {
		start(size[0], size[1])
	}
	fmt.Println("\n| Services (2 endpoints each) | slice event to kernel: p50 | p99 | worst |")
	fmt.Println("|---|---|---|---|")
	for _, services := range []int{1000, 5000, 45000} {
		latency(services)
	}
	rate(10000)
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
		b.cmd = exec.Command(*binary, "proxy", "--master", b.url, "--hostname-override", nodeName, "--socket", "")
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

// rss is the proxy's resident memory in MiB, and the anonymous part of it.
func (b *bed) rss() (all, anon int) {
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
			all = n / 1024
		case "RssAnon:":
			anon = n / 1024
		}
	}
	return all, anon
}

func start(services, endpoints int) {
	b := newBed(services, endpoints)
	defer b.ns.Close()
	took, line := b.run()
	all, anon := b.rss()
	time.Sleep(10 * time.Second) // what stays once the garbage of the start is gone
	allLater, anonLater := b.rss()
	b.stop()
	again, adopted := b.run()
	b.stop()
	fmt.Printf("| %d x %d | %.2f s | %s | %d / %d MiB (anonymous %d / %d) | %.2f s: %s, %s added, %s deleted |\n", services, endpoints, took.Seconds(), line[4],
		all, allLater, anon, anonLater, again.Seconds(), adopted[1], adopted[2], adopted[3])
}

// latency changes the last Service's endpoints between two and three, and
// watches the kernel for the row that comes and goes.
func latency(services int) {
	b := newBed(services, 2)
	defer b.ns.Close()
	b.run()
	defer b.stop()
	var k *nft.Netlink
	inNS(b.ns, func() {
		var err error
		if k, err = nft.Open(); err != nil {
			log.Fatal(err)
		}
	})
	defer k.Close()
	front := netip.MustParseAddr(clusterIP(services - 1)).AsSlice()
	key := append(front, 6, 0, 0, 0, 0, 80, 0, 0, 2, 0, 0, 0)
	set := model.Endpoints.Shape(model.V4).Name
	var took []time.Duration
	for i := range *changes {
		want := i%2 == 0
		at := time.Now()
		b.api.change(services-1, 2+(i+1)%2)
		for {
			_, held, err := k.Row(model.V4, table, set, key)
			if err != nil {
				log.Fatal(err)
			}
			if held == want {
				break
			}
			time.Sleep(50 * time.Microsecond) // leave the core to the proxy
		}
		took = append(took, time.Since(at))
		time.Sleep(time.Millisecond)
	}
	slices.Sort(took)
	fmt.Printf("| %d | %s | %s | %s |\n", services, took[len(took)/2].Round(time.Microsecond), took[len(took)*99/100].Round(time.Microsecond), took[len(took)-1].Round(time.Microsecond))
}
