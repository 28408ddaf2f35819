package trigger

import (
	"sync"
	"testing"

	"cel.dev/cel-go/cel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Subscriptions are checked at the door by many requests at once, and their
// errors too.
func TestExpressionsAreCompiledAtOnce(t *testing.T) {
	t.Parallel()
	for range 20 {
		env, err := newExprEnv("card")
		require.NoError(t, err)
		fresh := func() (*cel.Env, error) { return env, nil }
		var wg sync.WaitGroup
		wg.Go(func() {
			_, fault := compileExpression(fresh, "nobody == 'x'", 1000)
			assert.NotNil(t, fault)
		})
		wg.Go(func() {
			_, fault := compileExpression(fresh, "card.labels.exists(l, l.startsWith('a'))", 1000)
			assert.Nil(t, fault)
		})
		wg.Wait()
	}
}
