package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/server/apply"
	"github.com/triggerd/triggerd/pkg/server/github"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// demoWait bounds each wait for the engine.
const demoWait = 30 * time.Second

// demoOrder is the order in which the shipped deliveries are sent.
var demoOrder = []string{
	"ping", "issues.opened", "issues.labeled", "issues.assigned", "issues.unlabeled", "issue_comment.created", "pull_request.labeled",
}

type demoCmd struct {
	Stay         bool          `help:"Leave the server up afterwards, until interrupted."`
	Listen       string        `help:"Address to answer on; a free port by default." default:"127.0.0.1:0"`
	Insecure     bool          `name:"insecure-listen" help:"Allow --listen beyond this machine, although the demo has no TLS."`
	MongoURI     string        `name:"mongo-uri" help:"MongoDB connection string; the demo is in memory without." placeholder:"URI"`
	Database     string        `help:"Database name: one for demos, since the demo's replica serves all of it." default:"triggerd_demo" env:"TRIGGERD_DEMO_DATABASE"`
	StoreTimeout time.Duration `help:"Timeout of one database operation." default:"10s"`
	sealFlags
	LogLevel string `help:"Least level to log: ${enum}." enum:"debug,info,warn,error" default:"warn"`
}

// demo is one run of the demo.
type demo struct {
	std     streams
	store   trigger.Store
	sealer  trigger.Sealer
	replica *server.Server
	bot     *demoBot
	tenant  string
	hook    string
	names   map[string]string // ids to names
	secret  string
	shown   int64 // events up to this seq have been shown
}

// Run runs the demo.
func (c *demoCmd) Run(ctx context.Context, std streams) error {
	if err := (listenFlags{Listen: c.Listen, InsecureListen: c.Insecure}).check(); err != nil {
		return err
	}
	log := logFlags{LogLevel: c.LogLevel, LogFormat: "console"}.logger(std.err)
	sealer, err := c.sealer()
	if err != nil {
		return err
	}
	if _, missing := sealer.(seal.Missing); missing {
		key, err := seal.ParseKey(seal.NewKey())
		if err != nil {
			return err
		}
		if sealer, err = seal.New(key); err != nil {
			return err
		}
	}
	store, closeFn, err := mongoFlags{c.MongoURI, c.Database, c.StoreTimeout}.open(ctx, log)
	if err != nil {
		return err
	}
	defer closeFn()
	d := &demo{std: std, store: store, sealer: sealer, tenant: "demo-" + uuid.NewString()[:8], secret: uuid.NewString()}
	if d.bot, err = startDemoBot(ctx, d.secret); err != nil {
		return err
	}
	defer d.bot.stop()
	if err := d.configure(ctx); err != nil {
		return err
	}
	launcher := launch.NewHTTP(launch.HTTPParams{UserAgent: "triggerd/" + version})
	defer launcher.Close()
	timing := server.TimingDefault()
	timing.StoreTimeout = c.StoreTimeout
	d.replica, err = server.New(server.Params{
		Store: store, Sealer: sealer, Launcher: launcher, Logger: log, Listen: c.Listen, Name: replicaName("demo"), Timing: timing,
	})
	if err != nil {
		return err
	}
	if err := d.replica.Start(ctx); err != nil {
		return err
	}
	defer d.replica.Stop()
	if err := d.play(ctx); err != nil {
		return err
	}
	if c.Stay {
		return d.stay(ctx)
	}
	return nil
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.std.out, format+"\n", args...) }

// configure makes the demo's tenant through the same file format and code as
// `triggerd apply`.
func (d *demo) configure(ctx context.Context) error {
	text := fmt.Sprintf(`tenants:
  - id: %s
    name: Demo
    boards:
      - name: issues
        columns:
          - {id: open, name: Open}
          - {id: closed, name: Closed, terminal: true}
    bots:
      - name: implementer
        url: %s
        secret: {env: DEMO_SECRET}
    hooks:
      - name: github
        provider: github
        board: issues
        columns: {open: open, closed: closed}
        secret: {env: DEMO_SECRET}
    subscriptions:
      - name: greet-new-issues
        on: {kinds: [card.created], board: issues}
        bot: implementer
      - name: fix-bugs-once
        on: {board: issues}
        if: {columns: [open], labels_all: [bug]}
        bot: implementer
        consume: [bug]
`, d.tenant, d.bot.url)
	d.say("triggers.yaml:\n")
	d.say("%s", indent(text))
	file, err := apply.Parse("triggers.yaml", []byte(text))
	if err != nil {
		return err
	}
	result, err := apply.Apply(ctx, file, apply.Params{
		Store: d.store, Sealer: d.sealer, Clock: d.store, ReadFile: os.ReadFile, CheckURL: launch.CheckURL, ParseSecret: launch.ParseSecret,
		Getenv: func(name string) (string, bool) { return d.secret, name == "DEMO_SECRET" },
	})
	if err != nil {
		return err
	}
	d.names = make(map[string]string)
	for _, ch := range result.Changes {
		d.names[ch.ID] = ch.Name
		if ch.Kind == "hook" {
			d.hook = ch.ID
		}
	}
	return nil
}

// play sends the deliveries and shows what each does.
func (d *demo) play(ctx context.Context) error {
	payloads, err := github.Payloads()
	if err != nil {
		return err
	}
	byName := make(map[string]github.Payload)
	for _, p := range payloads {
		byName[p.Name] = p
	}
	for _, name := range demoOrder {
		p, ok := byName[name]
		if !ok {
			return fmt.Errorf("the delivery %s does not ship with this build", name)
		}
		id := uuid.NewString()
		if err := d.deliver(ctx, p, id); err != nil {
			return err
		}
		if name == "issues.opened" {
			d.say("            (the same delivery once more, as after a lost answer)")
			if err := d.deliver(ctx, p, id); err != nil {
				return err
			}
		}
	}
	return d.sum(ctx)
}

// deliver sends one delivery and follows it to its outcomes.
func (d *demo) deliver(ctx context.Context, p github.Payload, id string) error {
	var about struct {
		Issue *struct {
			Number int64  `json:"number"`
			Title  string `json:"title"`
			Labels []struct {
				Name string `json:"name"`
			} `json:"labels"`
		} `json:"issue"`
		Repository struct {
			FullName string `json:"full_name"`
		} `json:"repository"`
	}
	if err := json.Unmarshal(p.Body, &about); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	what := about.Repository.FullName
	if about.Issue != nil {
		var labels []string
		for _, l := range about.Issue.Labels {
			labels = append(labels, l.Name)
		}
		what += fmt.Sprintf("#%d %q labels %v", about.Issue.Number, about.Issue.Title, labels)
	}
	d.say("delivery    %s  %s", p.Name, what)
	status, answer, err := d.post(ctx, p, id)
	if err != nil {
		return err
	}
	switch {
	case status != http.StatusOK && status != http.StatusAccepted:
		return fmt.Errorf("delivery %s: status %d", p.Name, status)
	case answer.Reason != "":
		d.say("            %d %s: %s", status, answer.Status, answer.Reason)
	case answer.Status == "accepted" && answer.Event == "":
		d.say("            %d accepted: it changes nothing on the card, so it makes no event", status)
	default:
		d.say("            %d %s", status, answer.Status)
	}
	if answer.Event == "" {
		return nil
	}
	return d.follow(ctx, answer)
}

func (d *demo) post(ctx context.Context, p github.Payload, id string) (int, server.HookAnswer, error) {
	url := fmt.Sprintf("http://%s/v1/tenants/%s/hooks/%s", d.replica.Addr(), d.tenant, d.hook)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(p.Body))
	if err != nil {
		return 0, server.HookAnswer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(github.HeaderEvent, p.Event)
	req.Header.Set(github.HeaderDelivery, id)
	req.Header.Set(github.HeaderSignature, github.Sign([]byte(d.secret), p.Body))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, server.HookAnswer{}, fmt.Errorf("delivery %s: %w", p.Name, err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer server.HookAnswer
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, server.HookAnswer{}, fmt.Errorf("delivery %s: answer: %w", p.Name, err)
	}
	return resp.StatusCode, answer, nil
}

// follow shows the card, and every event up to the end of the log with its
// rows, launches and outcomes, until nothing is left to do.
func (d *demo) follow(ctx context.Context, answer server.HookAnswer) error {
	ctx, cancel := context.WithTimeout(ctx, demoWait)
	defer cancel()
	card, err := d.store.CardGet(ctx, d.tenant, answer.CardID)
	if err != nil {
		return err
	}
	d.say("card        %s in column %s, rev %d", card.ID, card.ColumnID, card.Rev)
	for {
		head, err := d.waitDrained(ctx)
		if err != nil {
			return err
		}
		if d.shown == head.Seq {
			return nil
		}
		events, err := d.store.EventList(ctx, d.tenant, d.shown, head.Seq)
		if err != nil {
			return err
		}
		for i := range events {
			if err := d.showEvent(ctx, &events[i]); err != nil {
				return err
			}
			d.shown = events[i].Seq
		}
	}
}

// until waits for a condition of the store.
func until(ctx context.Context, what string, done func() (bool, error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

func (d *demo) waitDrained(ctx context.Context) (head *trigger.Head, err error) {
	err = until(ctx, "the tail", func() (bool, error) {
		head, err = d.store.HeadGet(ctx, d.tenant)
		if errors.Is(err, tracker.ErrNotFound) {
			return false, nil
		}
		return err == nil && head.Cursor == head.Seq, err
	})
	return head, err
}

func (d *demo) showEvent(ctx context.Context, e *trigger.Event) error {
	by := e.Actor.ID
	if e.Actor.Kind == tracker.ActorBot {
		by = "bot " + e.Actor.Name
	}
	about := ""
	if len(e.Added) > 0 {
		about = fmt.Sprintf(" +%v", e.Added)
	}
	if len(e.Removed) > 0 {
		about += fmt.Sprintf(" -%v", e.Removed)
	}
	d.say("event       seq %d  %s%s by %s", e.Seq, e.Kind, about, by)
	rows, err := d.store.EffectListByEvent(ctx, d.tenant, e.ID())
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		d.say("            no subscription fires")
	}
	for _, row := range rows {
		sub := d.names[row.SubscriptionID]
		note := ""
		if len(row.Consume) > 0 {
			note = fmt.Sprintf(" (one-shot, spends %v)", row.Consume)
		}
		d.say("row         %s owes %s%s", row.ID, sub, note)
		var end *trigger.Effect
		err := until(ctx, "effect "+row.ID, func() (bool, error) {
			end, err = d.store.EffectGet(ctx, d.tenant, row.ID)
			return err == nil && !end.State.Live(), err
		})
		if err != nil {
			return err
		}
		for _, l := range d.bot.of(row.IdempotencyKey()) {
			d.say("launch      %s got %q, labels then %v, signature good, attempt %s", d.names[row.BotID], l.title, l.labels, l.attempt)
		}
		how := string(end.Outcome)
		if end.State == trigger.StateFailed {
			how = string(end.Reason)
		}
		d.say("outcome     %s: %s, %s", end.State, how, end.RunID)
	}
	return nil
}

// sum ends the demo with a table, and fails it if anything is not as promised.
func (d *demo) sum(ctx context.Context) error {
	rows, err := d.store.EffectList(ctx, trigger.EffectListParams{TenantID: d.tenant, Limit: 1000})
	if err != nil {
		return err
	}
	table := [][]string{{"EFFECT", "EVENT", "SUBSCRIPTION", "OUTCOME", "LAUNCHES", "RUN"}}
	delivered, failed := 0, 0
	for i := range rows {
		row := &rows[i]
		n := len(d.bot.of(row.IdempotencyKey()))
		if row.Outcome == trigger.OutcomeLaunched && n > 0 {
			delivered++
		} else {
			failed++
		}
		table = append(table, []string{
			row.ID, string(row.Event.Kind), d.names[row.SubscriptionID], string(row.State) + ": " + string(row.Outcome), strconv.Itoa(n), row.RunID,
		})
	}
	d.say("")
	if err := printTable(d.std.out, table); err != nil {
		return err
	}
	d.say("\ndemo: %d effects delivered, %d failed", delivered, failed)
	if failed > 0 || delivered == 0 {
		return errSilent
	}
	return nil
}

func (d *demo) stay(ctx context.Context) error {
	_, token, err := server.TokenCreate(ctx, d.store, server.TokenParams{Name: "demo", Role: trigger.RoleViewer, TenantID: d.tenant})
	if err != nil {
		return err
	}
	base := "http://" + d.replica.Addr()
	d.say("\nThe server stays up; interrupt it to end. Its tenant's token: %s", token)
	d.say("  curl -H 'Authorization: Bearer %s' %s/v1/tenants/%s/effects", token, base, d.tenant)
	d.say("  curl -H 'Authorization: Bearer %s' %s/v1/tenants/%s/events", token, base, d.tenant)
	d.say("  webhooks: %s/v1/tenants/%s/hooks/%s  (secret: %s)", base, d.tenant, d.hook, d.secret)
	select {
	case <-ctx.Done():
		return nil
	case err := <-d.replica.Failed():
		return err
	}
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ") + "\n"
}

// demoBot is a bot: an HTTP server of its own on loopback that checks each
// launch's signature and honours its idempotency key.
type demoBot struct {
	url    string
	secret []byte
	server *http.Server
	mu     sync.Mutex
	got    map[string][]demoLaunch
}

type demoLaunch struct {
	title, attempt, run string
	labels              []string
}

func startDemoBot(ctx context.Context, secret string) (*demoBot, error) {
	key, err := launch.ParseSecret(secret)
	if err != nil {
		return nil, err
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("demo bot: %w", err)
	}
	b := &demoBot{url: "http://" + ln.Addr().String() + "/launch", secret: key, got: make(map[string][]demoLaunch)}
	b.server = &http.Server{Handler: http.HandlerFunc(b.serve), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = b.server.Serve(ln) }()
	return b, nil
}

func (b *demoBot) stop() { _ = b.server.Close() }

func (b *demoBot) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20))
	if err == nil {
		err = launch.Verify(b.secret, r.Header, body, time.Now(), launch.VerifyToleranceDefault)
	}
	var msg trigger.LaunchBody
	if err == nil {
		err = json.Unmarshal(body, &msg)
	}
	if err != nil {
		http.Error(w, "bad launch", http.StatusBadRequest)
		return
	}
	key := r.Header.Get(launch.HeaderIdempotencyKey)
	b.mu.Lock()
	defer b.mu.Unlock()
	run := fmt.Sprintf("run-%d", len(b.got)+1)
	if before := b.got[key]; len(before) > 0 {
		run = before[0].run
	}
	l := demoLaunch{title: msg.Card.Title, attempt: r.Header.Get(launch.HeaderAttempt), run: run}
	if msg.Event.After != nil {
		l.labels = msg.Event.After.Labels
	}
	b.got[key] = append(b.got[key], l)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"run_id": run})
}

func (b *demoBot) of(key string) []demoLaunch {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.got[key]
}
