package boardmongo

import (
	"sync"

	"go.mongodb.org/mongo-driver/v2/event"
)

// primaryWatch counts the changes of the primary. The zero value is ready.
type primaryWatch struct {
	mu      sync.Mutex
	primary string
	changes int64
}

// Epoch implements trigger.Epochs: two reads within one epoch are answered by
// one primary, so that the later one is from no older a snapshot (T7).
func (s *Store) Epoch() int64 {
	s.epoch.mu.Lock()
	defer s.epoch.mu.Unlock()
	return s.epoch.changes
}

// changed is told of each change of the topology. What is no primary any more
// (an election, a restart, a lost connection) ends the epoch as much as a new
// one does.
func (w *primaryWatch) changed(e *event.TopologyDescriptionChangedEvent) {
	now := ""
	for _, s := range e.NewDescription.Servers {
		switch s.Kind {
		case "RSPrimary", "Standalone", "Mongos", "LoadBalancer":
			now += s.Addr.String() + "/" + s.ElectionID.Hex() + "/" + s.TopologyVersionProcessID.Hex() + " "
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if now != w.primary {
		w.primary = now
		w.changes++
	}
}
