package concordtest

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	concord "github.com/concord-config/concord/clients/go"
)

// demoEndTimeout is how long the program has to stop its nodes.
const demoEndTimeout = 20 * time.Second

// Demo is a cluster of the `concord` program.
type Demo struct {
	URLs   []string `json:"urls"`
	Key    string   `json:"key"`
	CAFile string   `json:"ca_file"`
}

// StartDemo starts a cluster of some nodes, with the program that the variable CONCORD_BIN names; without it, the test is
// skipped. It ends with the test, or with the program of the test.
func StartDemo(t testing.TB, nodes int) *Demo {
	t.Helper()
	program := os.Getenv("CONCORD_BIN")
	if program == "" {
		t.Skip("CONCORD_BIN names no program")
	}
	command := exec.Command(program, "demo", "--nodes", strconv.Itoa(nodes), "--no-sample", "--output", "json")
	command.Stderr = os.Stderr
	// The demo ends when this is closed.
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		late := time.AfterFunc(demoEndTimeout, func() { command.Process.Kill() })
		defer late.Stop()
		// What it still writes must not stop it.
		io.Copy(io.Discard, output)
		command.Wait()
	})
	made := &Demo{}
	if err := json.NewDecoder(output).Decode(made); err != nil || len(made.URLs) == 0 {
		t.Fatalf("the demo has not said where it is: %v", err)
	}
	return made
}

// Client makes a client of the cluster, without a reader. It ends with the test.
func (d *Demo) Client(t testing.TB) *concord.Client {
	t.Helper()
	client, err := concord.New(concord.Options{URLs: d.URLs, Key: d.Key, CAFile: d.CAFile, NoReader: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}
