package server

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// The call that came first may be the one that is overtaken: by the same call
// sent again, at any of its steps. The comment is there once all the same, and
// so is its event.
func TestCommentOvertakenByItsRepeat(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"CardGet", "CardWrite"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.newCard(t, "c1")
			editor := b.role(t, trigger.RoleEditor, "acme", "e")
			comment := func() answer { return b.keyed(t, editor, acme+"/cards/c1/comments", `{"body":"text"}`, "key-1") }
			var again string
			var overtaken atomic.Bool
			b.store.on(at, func(context.Context) error {
				if overtaken.CompareAndSwap(false, true) {
					again = comment().id(t)
				}
				return nil
			})
			first := comment().id(t)
			require.Equal(t, again, first)
			comments, err := b.mem.CardComments(t.Context(), "acme", "c1")
			require.NoError(t, err)
			require.Len(t, comments, 1)
			card, err := b.mem.CardGet(t.Context(), "acme", "c1")
			require.NoError(t, err)
			require.Equal(t, 1, card.CommentCount)
		})
	}
}
