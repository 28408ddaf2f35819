package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// ledger counts the launches of each key.
type ledger struct {
	mu    sync.Mutex
	times map[string]int
	// began has when the change of a card was begun whose launch is awaited,
	// by tenant and card; took is how long it then took.
	began map[string]time.Time
	took  []time.Duration
}

func newLedger() *ledger {
	return &ledger{times: make(map[string]int), began: make(map[string]time.Time)}
}

func (l *ledger) launched(key, body string) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times[key]++
	if len(l.began) == 0 {
		return
	}
	var b struct {
		TenantID string `json:"tenant_id"`
		Event    struct {
			CardID string `json:"card_id"`
		} `json:"event"`
	}
	if json.Unmarshal([]byte(body), &b) != nil {
		return
	}
	card := b.TenantID + "/" + b.Event.CardID
	if began, ok := l.began[card]; ok {
		l.took = append(l.took, now.Sub(began))
		delete(l.began, card)
	}
}

// await has the launch of the card's change timed from a moment on.
func (l *ledger) await(tenantID, cardID string, from time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began[tenantID+"/"+cardID] = from
}

// awaited returns what was timed, and how many are still awaited.
func (l *ledger) awaited() (took []time.Duration, missing int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.took, len(l.began)
}

// forget starts over with the times.
func (l *ledger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began, l.took = make(map[string]time.Time), nil
}

// count returns how many keys were launched.
func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.times)
}

// once returns how many keys were launched, but for those of the baseline, and
// an error if any was twice.
func (l *ledger) once() (launched int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, n := range l.times {
		if n != 1 {
			return 0, fmt.Errorf("effect %s was launched %d times", key, n)
		}
		if !strings.HasPrefix(key, basePrefix) {
			launched++
		}
	}
	return launched, nil
}

// noop is a launcher that launches nothing.
type noop struct{ ledger *ledger }

// Launch implements trigger.Launcher.
func (n noop) Launch(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
	n.ledger.launched(r.Key, r.Body)
	return trigger.Launched{RunID: "run"}, nil
}

const noURL = "http://127.0.0.1:9/launch" // never asked

// makeLauncher makes the run's launcher, and for HTTP the bot that it asks.
func (r *run) makeLauncher(ctx context.Context) (stop func(), err error) {
	if !r.HTTP {
		r.launcher = noop{r.launched}
		return func() {}, nil
	}
	r.report.Launcher = "http"
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for launches: %w", err)
	}
	r.report.botURL = "http://" + ln.Addr().String() + "/launch"
	bot := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(io.LimitReader(q.Body, 1<<20))
		if err != nil {
			return
		}
		r.launched.launched(q.Header.Get("Idempotency-Key"), string(body))
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"run_id":"run"}`)
	})}
	served := make(chan error, 1)
	go func() { served <- bot.Serve(ln) }()
	launcher := launch.NewHTTP(launch.HTTPParams{UserAgent: "triggerd-bench"})
	r.launcher = launcher
	return func() {
		launcher.Close()
		_ = bot.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			r.Progress("the bot ended: %v", err)
		}
	}, nil
}

func (r *run) botURL() string {
	if r.report.botURL != "" {
		return r.report.botURL
	}
	return noURL
}
