package boardmem_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/trigger"
	"github.com/triggerd/triggerd/pkg/trigger/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) trigger.Store { return boardmem.New() })
}

func TestProperty(t *testing.T) {
	t.Parallel()
	storetest.Property(t, func(*testing.T) trigger.Store { return boardmem.New() }, storetest.PropertyParams{Checks: 700, InMemory: true})
}

func TestProjectionsConverge(t *testing.T) {
	t.Parallel()
	storetest.ConvergeProjections(t, func(*testing.T) trigger.Store { return boardmem.New() }, 300)
}
