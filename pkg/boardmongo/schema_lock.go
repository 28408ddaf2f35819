package boardmongo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	schemaLockKey = "lock"
	// schemaLease is how long a process that died holds up the others.
	schemaLease = 30 * time.Second
	// schemaMargin is how long before the lease's end a step may begin at the
	// latest. It is far more than clocks are measured to.
	schemaMargin = 5 * time.Second
	// schemaLook is how often one that waits looks.
	schemaLook = 200 * time.Millisecond
)

var errSchemaLockLost = errors.New("the schema's lock was lost: another process may have taken over")

// schemaLock is held by the one process that changes indexes: no server drops
// an index on the condition that it still is the one that was listed.
type schemaLock struct {
	s      *Store
	holder string
	ctx    context.Context // ends when the lock is lost
	cancel context.CancelCauseFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	until time.Time // by this machine's clock
}

// schemaLocked takes the lock, waiting for whoever holds it, runs f with a
// context that ends when it is lost, and gives it back.
func (s *Store) schemaLocked(ctx context.Context, tell SchemaTell, f func(ctx context.Context, l *schemaLock) error) error {
	l := &schemaLock{s: s, holder: uuid.NewString()}
	for told := false; ; told = true {
		taken, err := l.take(ctx)
		if err != nil {
			return err
		}
		if taken {
			break
		}
		if !told {
			tell(SchemaNote{Text: "another process applies a schema; waiting for it"})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(schemaLook/2 + rand.N(schemaLook)): //nolint:gosec // jitter
		}
	}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	l.done.Go(l.keep)
	err := f(l.ctx, l)
	if cause := context.Cause(l.ctx); err != nil && errors.Is(cause, errSchemaLockLost) {
		err = errors.Join(cause, err)
	}
	l.cancel(nil)
	l.done.Wait()
	// It ends by itself if this fails.
	rctx, cancel := s.op(context.WithoutCancel(ctx))
	defer cancel()
	_, _ = s.db.Collection(collSchema).DeleteOne(rctx, l.mine())
	return err
}

func (l *schemaLock) mine() bson.D {
	return bson.D{{Key: "_id", Value: schemaLockKey}, {Key: "holder", Value: l.holder}}
}

// take reports whether the lock is this process's now. Its lease is judged in
// database time (W11).
func (l *schemaLock) take(ctx context.Context) (bool, error) {
	began := time.Now()
	now := l.s.Now()
	set := bson.D{{Key: "holder", Value: l.holder}, {Key: "until", Value: now.Add(schemaLease)}}
	taken, err := l.s.updateOne(ctx, collSchema, bson.D{
		{Key: "_id", Value: schemaLockKey},
		{Key: "$or", Value: bson.A{
			bson.D{{Key: "until", Value: bson.D{{Key: "$lte", Value: now}}}}, bson.D{{Key: "holder", Value: l.holder}},
		}},
	}, bson.D{{Key: "$set", Value: set}})
	if err == nil && !taken {
		ictx, cancel := l.s.op(ctx)
		defer cancel()
		_, err = l.s.db.Collection(collSchema).InsertOne(ictx, append(bson.D{{Key: "_id", Value: schemaLockKey}}, set...))
		taken = err == nil
		if mongo.IsDuplicateKeyError(err) {
			return false, nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("take the lock: %w", err)
	}
	l.until = began.Add(schemaLease)
	return taken, nil
}

// renew moves the end of the lease. It fails if the lock is another's.
func (l *schemaLock) renew(ctx context.Context) error {
	began := time.Now()
	held, err := l.s.updateOne(ctx, collSchema, l.mine(),
		bson.D{{Key: "$set", Value: bson.D{{Key: "until", Value: l.s.Now().Add(schemaLease)}}}})
	if err != nil {
		return fmt.Errorf("keep the lock: %w", err)
	}
	if !held {
		return errSchemaLockLost
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := began.Add(schemaLease); until.After(l.until) {
		l.until = until
	}
	return nil
}

func (l *schemaLock) ends() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until.Add(-schemaMargin)
}

// keep renews the lease while an index is built, and ends the context when it
// can't.
func (l *schemaLock) keep() {
	tick := time.NewTicker(schemaLease / 6)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
		err := l.renew(l.ctx)
		if errors.Is(err, errSchemaLockLost) || time.Now().After(l.ends()) {
			l.cancel(errSchemaLockLost)
			return
		}
	}
}

// step runs what must not happen once another holds the lock: it holds it when
// f begins, and f's context ends before the lease.
func (l *schemaLock) step(ctx context.Context, f func(context.Context) error) error {
	if err := l.renew(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, l.ends())
	defer cancel()
	return f(ctx)
}
