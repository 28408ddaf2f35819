package bench

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/event"
)

// Counts is what was sent to the database and came back from it.
type Counts struct {
	Commands int64 `json:"commands"`
	// Documents were found, inserted, updated or deleted.
	Documents int64 `json:"documents"`
	// Bytes are those of commands and answers, uncompressed.
	Bytes int64 `json:"bytes"`
}

func (c Counts) minus(o Counts) Counts {
	return Counts{c.Commands - o.Commands, c.Documents - o.Documents, c.Bytes - o.Bytes}
}

// meter counts the commands of the connections that it listens to.
type meter struct {
	commands, documents, bytes atomic.Int64

	mu      sync.Mutex
	kinds   map[string]Kind
	pending map[int64]string // kinds of the commands under way, by request id
}

// Kind is the commands of one name and collection.
type Kind struct {
	Commands int64 `json:"commands"`
	// MS is how long they took, in milliseconds; they overlap.
	MS float64 `json:"ms"`
}

// byKind returns what there was of each kind since the last call.
func (m *meter) byKind() map[string]Kind {
	m.mu.Lock()
	defer m.mu.Unlock()
	kinds := m.kinds
	m.kinds = nil
	return kinds
}

func (m *meter) count(e *event.CommandStartedEvent) {
	kind := e.CommandName
	if coll, ok := e.Command.Lookup(e.CommandName).StringValueOK(); ok {
		kind += " " + coll
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pending == nil {
		m.pending = make(map[int64]string)
	}
	m.pending[e.RequestID] = kind
}

func (m *meter) finished(e event.CommandFinishedEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kinds == nil {
		m.kinds = make(map[string]Kind)
	}
	kind := m.pending[e.RequestID]
	delete(m.pending, e.RequestID)
	k := m.kinds[kind]
	m.kinds[kind] = Kind{k.Commands + 1, k.MS + float64(e.Duration.Microseconds())/1000}
}

func (m *meter) read() Counts {
	return Counts{m.commands.Load(), m.documents.Load(), m.bytes.Load()}
}

func (m *meter) monitor() *event.CommandMonitor {
	return &event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			m.commands.Add(1)
			m.count(e)
			m.bytes.Add(int64(len(e.Command)))
		},
		Failed: func(_ context.Context, e *event.CommandFailedEvent) { m.finished(e.CommandFinishedEvent) },
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
			m.finished(e.CommandFinishedEvent)
			m.bytes.Add(int64(len(e.Reply)))
			for _, batch := range []string{"firstBatch", "nextBatch"} {
				if docs, ok := e.Reply.Lookup("cursor", batch).ArrayOK(); ok {
					values, _ := docs.Values()
					m.documents.Add(int64(len(values)))
				}
			}
			if n, ok := e.Reply.Lookup("n").AsInt64OK(); ok && e.CommandName != "hello" {
				m.documents.Add(n)
			}
		},
	}
}

// peakRSS is the most memory that the process ever had resident, in bytes; 0
// where the system does not tell.
func peakRSS() int64 { return peakRSSOf("self") }

// peakRSSOf is that of a process by its pid.
func peakRSSOf(pid string) int64 {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		if fields := bytes.Fields(line); len(fields) == 3 && string(fields[0]) == "VmHWM:" {
			kib, _ := strconv.ParseInt(string(fields[1]), 10, 64)
			return kib << 10
		}
	}
	return 0
}
