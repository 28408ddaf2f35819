package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// editTries is how often an edit that goes for whatever is there is made again
// because somebody else's came between.
const editTries = 10

// NoBody is the body of a call that takes none.
type NoBody struct{}

// ListInput asks for a page of a list.
type ListInput struct {
	TenantInput
	After string `query:"after" maxLength:"200" pattern:"^[A-Za-z0-9_-]*$" doc:"the cursor that the page before gave"`
	Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
}

// configured is one kind of thing that people configure: how it is kept, and
// how the API shows it.
type configured[T, V any] struct {
	*API
	// kind is what the audit log calls it, path the place of its list.
	kind, path string
	// most is how many a tenant may have, count how many it has.
	most  int
	count func(ctx context.Context, tenantID string) (int, error)

	get    func(ctx context.Context, tenantID, id string) (*T, error)
	page   func(ctx context.Context, tenantID, afterID string, limit int) ([]T, error)
	save   func(ctx context.Context, v *T) error
	remove func(ctx context.Context, tenantID, id string, revision int64) error
	key    func(v *T) (tenantID, id string, revision int64)
	// show reads what it takes to show the tenant's, ahead of a write, so that
	// one which was made is never left untold.
	show func(ctx context.Context, tenantID string) (func(v *T) V, error)
}

// pages makes pages of a list that a tenant's limits keep short.
func pages[T any](list func(ctx context.Context, tenantID string) ([]T, error), id func(*T) string) func(ctx context.Context, tenantID, afterID string, limit int) ([]T, error) {
	return func(ctx context.Context, tenantID, afterID string, limit int) ([]T, error) {
		all, err := list(ctx, tenantID)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(v T) bool { return id(&v) <= afterID })
		slices.SortFunc(all, func(a, b T) int { return cmp.Compare(id(&a), id(&b)) })
		return all[:min(len(all), limit)], nil
	}
}

func counts[T any](list func(ctx context.Context, tenantID string) ([]T, error)) func(ctx context.Context, tenantID string) (int, error) {
	return func(ctx context.Context, tenantID string) (int, error) {
		all, err := list(ctx, tenantID)
		return len(all), err
	}
}

// list answers with a page, by id.
func (k *configured[T, V]) list(ctx context.Context, in *ListInput) (*one[Page[V]], error) {
	after, err := readCursor(k.path, in.After)
	if err != nil {
		return nil, k.fail(err)
	}
	show, err := k.show(ctx, in.Tenant)
	if err != nil {
		return nil, k.fail(err)
	}
	found, err := k.page(ctx, in.Tenant, after, in.Limit+1)
	if err != nil {
		return nil, k.fail(err)
	}
	page := Page[V]{Items: []V{}}
	for i := range found {
		if i == in.Limit {
			_, id, _ := k.key(&found[i-1])
			page.Next = newCursor(k.path, id)
			break
		}
		page.Items = append(page.Items, show(&found[i]))
	}
	return &one[Page[V]]{page}, nil
}

// one answers with one.
func (k *configured[T, V]) one(ctx context.Context, tenantID, id string) (*tagged[V], error) {
	show, err := k.show(ctx, tenantID)
	if err != nil {
		return nil, k.fail(err)
	}
	v, err := k.get(ctx, tenantID, id)
	if err != nil {
		return nil, k.fail(err)
	}
	return k.tagged(show, v), nil
}

func (k *configured[T, V]) tagged(show func(*T) V, v *T) *tagged[V] {
	_, _, rev := k.key(v)
	return &tagged[V]{ETag: etag(rev), Body: show(v)}
}

// create saves a new one, which build makes for its id.
func (k *configured[T, V]) create(ctx context.Context, tenantID string, build func(id string) (*T, error)) (out *made[V], mine bool, err error) {
	id, again := newID(ctx)
	return k.createAs(ctx, tenantID, id, again, build)
}

// createAs is create under an id. It returns what is there under that id, and
// whether this call made it: a call with the same Idempotency-Key may have been
// here before (again).
func (k *configured[T, V]) createAs(ctx context.Context, tenantID, id string, again bool, build func(id string) (*T, error)) (out *made[V], mine bool, err error) {
	show, err := k.show(ctx, tenantID)
	if err != nil {
		return nil, false, k.fail(err)
	}
	answer := func(v *T, mine bool) (*made[V], bool, error) {
		_, _, rev := k.key(v)
		return &made[V]{Status: 201, ETag: etag(rev), Location: "/v1/tenants/" + tenantID + "/" + k.path + "/" + id, Body: show(v)}, mine, nil
	}
	if again {
		have, err := k.get(ctx, tenantID, id)
		switch {
		case err == nil:
			return answer(have, false)
		case !errors.Is(err, tracker.ErrNotFound):
			return nil, false, k.fail(err)
		}
	}
	v, err := build(id)
	if err != nil {
		return nil, false, k.refuse(err)
	}
	n, err := k.count(ctx, tenantID)
	if err != nil {
		return nil, false, k.fail(err)
	}
	if n >= k.most {
		return nil, false, huma.Error409Conflict(fmt.Sprintf("a tenant has at most %d %s: delete one first", k.most, k.path))
	}
	err = k.save(ctx, v)
	if errors.Is(err, tracker.ErrConflict) {
		have, err := k.get(ctx, tenantID, id)
		switch {
		case err == nil:
			return answer(have, false)
		case errors.Is(err, tracker.ErrNotFound):
			return nil, false, k.nameTaken()
		}
		return nil, false, k.fail(err)
	}
	if err != nil {
		return nil, false, k.refuse(err)
	}
	noteChange(ctx, k.kind, id, nil, show(v))
	return answer(v, true)
}

func (k *configured[T, V]) nameTaken() error {
	return huma.Error409Conflict("the tenant has a " + k.kind + " of this name already")
}

// edit saves one as change makes it of a copy of what is there; change reports
// whether there is anything to save, and is called again when somebody else
// wrote in between and the caller goes for whatever is there. An edit of the
// whole thing has to say what it saw.
func (k *configured[T, V]) edit(ctx context.Context, tenantID, id string, m *MatchInput, whole bool, change func(next *T) (bool, error)) (*tagged[V], error) {
	show, err := k.show(ctx, tenantID)
	if err != nil {
		return nil, k.fail(err)
	}
	for range editTries {
		was, err := k.get(ctx, tenantID, id)
		if err != nil {
			return nil, k.fail(err)
		}
		_, _, rev := k.key(was)
		if err := m.check(rev, whole); err != nil {
			return nil, err
		}
		next := *was // what it holds is replaced, never written to
		write, err := change(&next)
		if err != nil {
			return nil, k.refuse(err)
		}
		if !write {
			return k.tagged(show, was), nil
		}
		if err = k.save(ctx, &next); err == nil {
			noteChange(ctx, k.kind, id, show(was), show(&next))
			return k.tagged(show, &next), nil
		}
		if !errors.Is(err, tracker.ErrConflict) {
			return nil, k.refuse(err)
		}
		now, err := k.get(ctx, tenantID, id)
		if err != nil {
			return nil, k.fail(err)
		}
		if _, _, rev2 := k.key(now); rev2 == rev {
			return nil, k.nameTaken()
		}
	}
	return nil, huma.Error409Conflict("others write to it all the time: try again")
}

// drop deletes one.
func (k *configured[T, V]) drop(ctx context.Context, tenantID, id string, m *MatchInput) error {
	show, err := k.show(ctx, tenantID)
	if err != nil {
		return k.fail(err)
	}
	for range editTries {
		was, err := k.get(ctx, tenantID, id)
		if err != nil {
			return k.fail(err)
		}
		_, _, rev := k.key(was)
		if err := m.check(rev, false); err != nil {
			return err
		}
		err = k.remove(ctx, tenantID, id, rev)
		if err == nil {
			noteChange(ctx, k.kind, id, show(was), nil)
			return nil
		}
		if !errors.Is(err, tracker.ErrConflict) {
			return k.fail(err)
		}
	}
	return huma.Error409Conflict("others write to it all the time: try again")
}

// faults is all that is wrong with what was sent.
type faults []tracker.FieldError

func (f faults) Error() string { return fmt.Sprintf("%d fields are refused", len(f)) }

// orNil is no error if there is none.
func (f faults) orNil() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// fields are the errors of the fields, each under a prefix. A key that somebody
// chose is not repeated, unless it is a plain name.
func (f faults) fields(prefix string) []error {
	out := make([]error, len(f))
	for i := range f {
		field, _, _ := strings.Cut(f[i].Field, `["`)
		out[i] = &tracker.FieldError{Field: prefix + field, Want: f[i].Want}
	}
	return out
}

// refuse translates what is wrong with what was sent, or an error of the store.
func (a *API) refuse(err error) error {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if f, ok := errors.AsType[faults](err); ok {
		return huma.Error422UnprocessableEntity("refused", f.fields("body.")...)
	}
	return a.fail(inBody(err))
}
