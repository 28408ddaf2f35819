// Package boardmongo keeps everything in MongoDB, or a server compatible with
// it. It needs neither transactions nor change streams. Reads and writes are
// of majority concern, every command has a timeout, and no answer of a write
// is trusted that a read can decide.
package boardmongo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// TimeoutDefault bounds one database operation (docs/configuration.md).
const TimeoutDefault = trigger.StoreTimeoutDefault

// DatabaseDefault is the database used when none is named.
const DatabaseDefault = "triggerd"

// Params says which database to use and how.
type Params struct {
	URI      string
	Database string        // DatabaseDefault if empty
	Timeout  time.Duration // of one operation; TimeoutDefault if 0
	// Monitor, if set, sees every command.
	Monitor *event.CommandMonitor
}

// Store implements every port on one database. Safe for concurrent use.
type Store struct {
	client  *mongo.Client
	db      *mongo.Database
	hosts   string
	timeout time.Duration
	// offset is the database's time minus this machine's, in nanoseconds.
	offset   atomic.Int64
	epoch    primaryWatch
	observer atomic.Pointer[func(name string, took time.Duration, ok bool)]
}

var _ trigger.Store = (*Store)(nil)

// Connect opens a store and waits until the database answers, at most for one
// operation's timeout. Its errors name the hosts and never the credentials.
func Connect(ctx context.Context, p Params) (*Store, error) {
	if p.Database == "" {
		p.Database = DatabaseDefault
	}
	if p.Timeout == 0 {
		p.Timeout = TimeoutDefault
	}
	opts := options.Client().ApplyURI(p.URI)
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("the MongoDB URI is not valid: %s", withoutCredentials(p.URI, err.Error()))
	}
	opts.SetAppName("triggerd").
		SetReadConcern(readconcern.Majority()).SetWriteConcern(durable()).SetReadPreference(readpref.Primary()).
		SetServerSelectionTimeout(p.Timeout).SetConnectTimeout(p.Timeout).
		SetBSONOptions(&options.BSONOptions{UseJSONStructTags: true, OmitZeroStruct: true})
	s := &Store{hosts: strings.Join(opts.Hosts, ","), timeout: p.Timeout}
	opts.SetMonitor(s.observed(p.Monitor))
	opts.SetServerMonitor(&event.ServerMonitor{TopologyDescriptionChanged: s.epoch.changed})
	client, err := mongo.Connect(opts)
	if err != nil {
		return nil, fmt.Errorf("the MongoDB URI is not valid: %s", withoutCredentials(p.URI, err.Error()))
	}
	s.client, s.db = client, client.Database(p.Database)
	if err := s.ClockSync(ctx); err != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = client.Disconnect(cctx)
		return nil, fmt.Errorf("MongoDB at %s does not answer: %s", s.hosts, withoutCredentials(p.URI, err.Error()))
	}
	return s, nil
}

// durable is acknowledged by a majority, from their journals. On a replica set
// the one says the other; a standalone would acknowledge what it has in memory,
// and lose up to 100 ms of it in a crash.
func durable() *writeconcern.WriteConcern {
	wc, journal := writeconcern.Majority(), true
	wc.Journal = &journal
	return wc
}

// withoutCredentials takes what stands before the @ of a URI out of a text.
func withoutCredentials(uri, text string) string {
	if uri == "" {
		return text
	}
	text = strings.ReplaceAll(text, uri, "(URI)")
	_, rest, _ := strings.Cut(uri, "://")
	if i := strings.LastIndex(rest, "@"); i > 0 {
		creds := rest[:i]
		_, password, _ := strings.Cut(creds, ":")
		plain, _ := url.PathUnescape(password)
		for _, secret := range []string{creds, password, plain} {
			if secret != "" {
				text = strings.ReplaceAll(text, secret, "***")
			}
		}
	}
	return text
}

// Close disconnects.
func (s *Store) Close(ctx context.Context) error { return s.client.Disconnect(ctx) }

// Database returns the database, for tools that look into it.
func (s *Store) Database() *mongo.Database { return s.db }

// Hosts returns the hosts of the URI.
func (s *Store) Hosts() string { return s.hosts }

// Now implements trigger.Clock: the database's time as last measured.
func (s *Store) Now() time.Time {
	return time.Now().Add(time.Duration(s.offset.Load())).UTC().Truncate(time.Millisecond)
}

// ClockSync measures the offset of the database's time (W11).
func (s *Store) ClockSync(ctx context.Context) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	var hello struct {
		LocalTime time.Time `bson:"localTime"`
	}
	before := time.Now()
	if err := s.db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if hello.LocalTime.IsZero() {
		return errors.New("hello: the server tells no time")
	}
	middle := before.Add(time.Since(before) / 2)
	s.offset.Store(int64(hello.LocalTime.Sub(middle)))
	return nil
}

// Ping implements trigger.Store.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	return s.client.Ping(ctx, readpref.Primary())
}

// op bounds one operation.
func (s *Store) op(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.timeout)
}

// doc is a stored value: the tenant begins its key.
type doc[T any] struct {
	Key string `bson:"_id"`
	V   T      `bson:",inline"`
}

func docKey(tenantID, id string) string { return tenantID + "/" + id }

// findOne returns the document that the filter names, or tracker.ErrNotFound.
func findOne[T any](ctx context.Context, s *Store, coll string, filter bson.D, opts ...options.Lister[options.FindOneOptions]) (*T, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	var d doc[T]
	err := s.db.Collection(coll).FindOne(ctx, filter, opts...).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, fmt.Errorf("%s: %w", coll, tracker.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", coll, err)
	}
	return &d.V, nil
}

// findBatch is how many documents a find answers with at once; unless it is
// told, a server answers with 101 and wants to be asked for the others.
const findBatch = 10_000

// findAll returns all documents of a filter that bounds them.
func findAll[T any](ctx context.Context, s *Store, coll string, filter bson.D, opts ...options.Lister[options.FindOptions]) ([]T, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	opts = append([]options.Lister[options.FindOptions]{options.Find().SetBatchSize(findBatch)}, opts...)
	cur, err := s.db.Collection(coll).Find(ctx, filter, opts...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", coll, err)
	}
	var docs []doc[T]
	if err := cur.All(ctx, &docs); err != nil {
		return nil, fmt.Errorf("%s: %w", coll, err)
	}
	out := make([]T, len(docs))
	for i := range docs {
		out[i] = docs[i].V
	}
	return out, nil
}

// updateOne reports whether a document met the filter.
func (s *Store) updateOne(ctx context.Context, coll string, filter, update any) (bool, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	res, err := s.db.Collection(coll).UpdateOne(ctx, filter, update)
	if err != nil {
		return false, fmt.Errorf("%s: %w", coll, err)
	}
	return res.MatchedCount > 0, nil
}

// toDoc marshals a value the way that the client does.
func toDoc(v any) (bson.D, error) {
	raw, err := marshal(v)
	if err != nil {
		return nil, err
	}
	var d bson.D
	err = bson.Unmarshal(raw, &d)
	return d, err
}
