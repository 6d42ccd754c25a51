//go:build linux

// Package nodes has three nodes of the binary that CONCORD_BIN names, as processes that a test may kill and pause.
package nodes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// Patience is how long anything may take.
	Patience  = 120 * time.Second
	portFirst = 20_000
	portCount = 12_000
)

// IDs are those of the nodes.
var IDs = []int{1, 2, 3}

// Cluster are three nodes.
type Cluster struct {
	Home, Key string

	program   string
	withTLS   bool
	api, peer map[int]string
	client    *http.Client

	mu        sync.Mutex
	processes map[int]*exec.Cmd
}

// Start forms a cluster; with TLS, its nodes require client certificates of another authority.
func Start(program string, withTLS bool) (*Cluster, error) {
	home, err := os.MkdirTemp("", "concord-go-client-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		Home: home, Key: fmt.Sprintf("go-client-root-key-%d-0123456789abcdef", os.Getpid()), program: program, withTLS: withTLS,
		api: map[int]string{}, peer: map[int]string{}, processes: map[int]*exec.Cmd{}, client: &http.Client{Timeout: 30 * time.Second},
	}
	if err := c.form(); err != nil {
		c.End()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) form() error {
	var err error
	if c.program, err = filepath.Abs(c.program); err != nil {
		return err
	}
	ports := freePorts(2 * len(IDs))
	certificates := [][]string{{"ca"}}
	for place, n := range IDs {
		c.api[n] = fmt.Sprintf("127.0.0.1:%d", ports[place])
		c.peer[n] = fmt.Sprintf("127.0.0.1:%d", ports[len(IDs)+place])
		certificates = append(certificates, []string{"node", strconv.Itoa(n), "--host", "127.0.0.1"})
	}
	if c.withTLS {
		certificates = append(certificates, []string{"ca", "--out", "callers"},
			[]string{"node", "9", "--ca", "callers", "--out", "callers", "--host", "caller"})
	}
	for _, each := range certificates {
		command := exec.Command(c.program, append([]string{"cert"}, each...)...)
		command.Dir = c.Home
		if told, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("cert %v: %w: %s", each, err, told)
		}
	}
	for _, n := range IDs {
		if err := c.StartNode(n); err != nil {
			return err
		}
	}
	if c.withTLS {
		// The tests ask with a client of their own.
		return nil
	}
	// It may be said again with the same members.
	if err := c.until("a cluster", func() bool {
		status, _ := c.Ask(1, "POST", "/api/v1/cluster/init", c.Members())
		return status == 200
	}); err != nil {
		return err
	}
	return c.WaitReady()
}

// Members are those that a cluster is formed of.
func (c *Cluster) Members() any {
	var members []map[string]any
	for _, n := range IDs {
		members = append(members, map[string]any{"id": n, "api_addr": c.api[n], "peer_addr": c.peer[n]})
	}
	return map[string]any{"members": members}
}

func freePorts(count int) []int {
	var found []int
	for port := (os.Getpid()*37 + time.Now().Nanosecond()/1000) % portCount; len(found) < count; port = (port + 1) % portCount {
		if listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", portFirst+port)); err == nil {
			listener.Close()
			found = append(found, portFirst+port)
		}
	}
	return found
}

// URLs are those of the nodes.
func (c *Cluster) URLs() []string {
	var urls []string
	for _, n := range IDs {
		urls = append(urls, c.URL(n))
	}
	return urls
}

// URL is that of a node.
func (c *Cluster) URL(n int) string {
	if c.withTLS {
		return "https://" + c.api[n]
	}
	return "http://" + c.api[n]
}

// Address is that of a node.
func (c *Cluster) Address(n int) string { return c.api[n] }

// NodeOf is the node with a URL.
func (c *Cluster) NodeOf(url string) int {
	return slices.IndexFunc(IDs, func(n int) bool { return c.URL(n) == url }) + 1
}

// StartNode starts a node, or one again that was killed.
func (c *Cluster) StartNode(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	file := func(kind string) string { return filepath.Join(c.Home, fmt.Sprintf("node-%d.%s", n, kind)) }
	log, err := os.OpenFile(filepath.Join(c.Home, fmt.Sprintf("node%d.log", n)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command(c.program, "serve")
	command.Stdout, command.Stderr = log, log
	// No node outlives the test.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command.Env = append(
		slices.DeleteFunc(os.Environ(), func(each string) bool { return strings.HasPrefix(each, "CONCORD_") }),
		"CONCORD_NODE_ID="+strconv.Itoa(n), "CONCORD_API_ADDR="+c.api[n], "CONCORD_PEER_ADDR="+c.peer[n],
		"CONCORD_DATA_DIR="+filepath.Join(c.Home, fmt.Sprintf("data%d", n)), "CONCORD_API_KEY="+c.Key,
		"CONCORD_PEER_CERT_FILE="+file("pem"), "CONCORD_PEER_KEY_FILE="+file("key"),
		"CONCORD_PEER_CA_FILE="+filepath.Join(c.Home, "ca.pem"),
	)
	if c.withTLS {
		command.Env = append(command.Env, "CONCORD_TLS_CERT_FILE="+file("pem"), "CONCORD_TLS_KEY_FILE="+file("key"),
			"CONCORD_TLS_CLIENT_CA_FILE="+filepath.Join(c.Home, "callers", "ca.pem"))
	}
	if err := command.Start(); err != nil {
		return err
	}
	c.processes[n] = command
	return nil
}

// Kill ends a node at once.
func (c *Cluster) Kill(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if command := c.processes[n]; command != nil {
		delete(c.processes, n)
		command.Process.Kill()
		command.Wait()
	}
}

// Pause stops a node without ending it.
func (c *Cluster) Pause(n int) { c.signal(n, syscall.SIGSTOP) }

// Resume lets a node go on.
func (c *Cluster) Resume(n int) { c.signal(n, syscall.SIGCONT) }

func (c *Cluster) signal(n int, signal syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if command := c.processes[n]; command != nil {
		command.Process.Signal(signal)
	}
}

// Ask sends a request to one node. The status is 0 without a response.
func (c *Cluster) Ask(n int, method, path string, body any) (int, json.RawMessage) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil
	}
	if body == nil {
		text = nil
	}
	request, err := http.NewRequest(method, c.URL(n)+path, bytes.NewReader(text))
	if err != nil {
		return 0, nil
	}
	request.Header.Set("Authorization", c.Key)
	request.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(request)
	if err != nil {
		return 0, nil
	}
	defer response.Body.Close()
	found, _ := io.ReadAll(response.Body)
	return response.StatusCode, found
}

func (c *Cluster) until(what string, condition func() bool) error {
	for end := time.Now().Add(Patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s: not within %s", what, Patience)
		}
	}
	return nil
}

// WaitReady waits until all nodes that run are ready.
func (c *Cluster) WaitReady() error {
	return c.until("nodes to be ready", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for n := range c.processes {
			if status, _ := c.Ask(n, "GET", "/readyz", nil); status != 200 {
				return false
			}
		}
		return true
	})
}

// Leader is the node that leads; 0 if none does in time.
func (c *Cluster) Leader() int {
	leader := 0
	_ = c.until("a leader", func() bool {
		for _, n := range IDs {
			var found struct {
				Data struct {
					Leader int `json:"leader_id"`
				}
			}
			status, body := c.Ask(n, "GET", "/api/v1/cluster", nil)
			c.mu.Lock()
			isThere := status == 200 && json.Unmarshal(body, &found) == nil && c.processes[found.Data.Leader] != nil
			c.mu.Unlock()
			if isThere {
				leader = found.Data.Leader
				return true
			}
		}
		return false
	})
	return leader
}

// End kills all nodes and deletes their data.
func (c *Cluster) End() {
	for _, n := range IDs {
		c.Kill(n)
	}
	os.RemoveAll(c.Home)
}
