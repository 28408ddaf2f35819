package trigger

import (
	"errors"
	"slices"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// The types of `card`, `event` and `actor`.
var (
	cardType     = types.NewObjectType("Card")
	externalType = types.NewObjectType("External")
	eventType    = types.NewObjectType("Event")
	actorType    = types.NewObjectType("Actor")
	effectType   = types.NewObjectType("Effect")
)

// exprTypes is what an expression may select. A field that is not there is a
// fault at the door; one that is there and unset is empty, and has() tells.
type exprTypes struct{ *types.Registry }

var exprFields = map[string]map[string]*types.FieldType{
	"Card": {
		"title":     textField(func(c *cardFacts) string { return c.s.Title }),
		"labels":    listField(func(c *cardFacts) ref.Val { return c.labelsList.of(c.s.Labels, c.foldedLabels) }, func(c *cardFacts) bool { return len(c.s.Labels) > 0 }),
		"assignees": listField(func(c *cardFacts) ref.Val { return c.assigneeList.of(c.s.Assignees, c.foldedAssignees) }, func(c *cardFacts) bool { return len(c.s.Assignees) > 0 }),
		"column":    textField(func(c *cardFacts) string { return c.s.ColumnID }),
		"board":     textField(func(c *cardFacts) string { return c.s.BoardID }),
		"external": field(externalType, func(c *cardFacts) any {
			if c.s.External == nil {
				return noExternal
			}
			return c.s.External
		}, func(c *cardFacts) bool { return c.s.External != nil }),
	},
	"External": {
		"repo":   textField(func(x *tracker.External) string { return x.Repo }),
		"number": field(cel.IntType, func(x *tracker.External) any { return types.Int(x.Number) }, func(x *tracker.External) bool { return x.Number != 0 }),
		"url":    textField(func(x *tracker.External) string { return x.URL }),
	},
	"Event": {
		"kind":   textField(func(f *facts) string { return string(f.e.Kind) }),
		"source": textField(func(f *facts) string { return string(f.e.Source) }),
		"from":   textField(func(f *facts) string { return f.e.FromColumn }),
		"to":     textField(func(f *facts) string { return f.e.ToColumn }),
		"added":  listField(func(f *facts) ref.Val { return f.addedList.of(f.e.Added, f.foldedAdded) }, func(f *facts) bool { return len(f.e.Added) > 0 }),
		"removed": listField(func(f *facts) ref.Val {
			return f.removedList.of(f.e.Removed, f.foldedRemoved)
		}, func(f *facts) bool { return len(f.e.Removed) > 0 }),
		"effect": field(effectType, func(f *facts) any { return f.told() }, func(f *facts) bool { return f.told() != noTold }),
		"before": field(cardType, func(f *facts) any { return &f.before }, func(f *facts) bool { return f.e.Before != nil }),
	},
	"Effect": {
		"id":           textField(func(t *Told) string { return t.Effect }),
		"kind":         textField(func(t *Told) string { return string(t.Kind) }),
		"state":        textField(func(t *Told) string { return string(t.State) }),
		"reason":       textField(func(t *Told) string { return string(t.Reason) }),
		"subscription": textField(func(t *Told) string { return t.Subscription }),
		"bot":          textField(func(t *Told) string { return t.Bot }),
		"projection":   textField(func(t *Told) string { return t.Projection }),
		"attempts":     field(cel.IntType, func(t *Told) any { return types.Int(t.Attempts) }, func(t *Told) bool { return t.Attempts != 0 }),
		"error":        textField(func(t *Told) string { return t.Error }),
	},
	"Actor": {
		"kind": textField(func(a *tracker.Actor) string { return string(a.Kind) }),
		"id":   textField(func(a *tracker.Actor) string { return a.ID }),
		"name": textField(func(a *tracker.Actor) string { return a.Name }),
	},
}

var noExternal = &tracker.External{}

var errOtherType = errors.New("a value of another type")

func field[T any](t *types.Type, get func(T) any, set func(T) bool) *types.FieldType {
	return &types.FieldType{
		Type: t,
		IsSet: func(target any) bool {
			v, ok := target.(T)
			return ok && set(v)
		},
		GetFrom: func(target any) (any, error) {
			v, ok := target.(T)
			if !ok {
				return nil, errOtherType
			}
			return get(v), nil
		},
	}
}

func textField[T any](get func(T) string) *types.FieldType {
	return field(cel.StringType, func(v T) any { return types.String(get(v)) }, func(v T) bool { return get(v) != "" })
}

func listField[T any](get func(T) ref.Val, set func(T) bool) *types.FieldType {
	return field(cel.ListType(cel.StringType), func(v T) any { return get(v) }, set)
}

// FindStructType implements types.Provider.
func (exprTypes) FindStructType(name string) (*types.Type, bool) {
	if exprFields[name] == nil {
		return nil, false
	}
	return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
}

// FindStructFieldNames implements types.Provider.
func (exprTypes) FindStructFieldNames(name string) ([]string, bool) {
	var names []string
	for f := range exprFields[name] {
		names = append(names, f)
	}
	return names, names != nil
}

// FindStructFieldType implements types.Provider.
func (exprTypes) FindStructFieldType(name, fieldName string) (*types.FieldType, bool) {
	f, ok := exprFields[name][fieldName]
	return f, ok
}

// foldList is a list of labels or logins, in which `in` finds what is equal
// under tracker.Fold, as everywhere.
type foldList struct {
	traits.Lister
	folded func() []string
}

// Contains implements traits.Container.
func (l *foldList) Contains(v ref.Val) ref.Val {
	s, ok := v.(types.String)
	if !ok {
		return types.False
	}
	want := tracker.Fold(string(s))
	for _, have := range l.folded() {
		if have == want {
			return types.True
		}
	}
	return types.False
}

// Add implements traits.Adder: in the sum too, `in` finds what is equal so.
func (l *foldList) Add(other ref.Val) ref.Val {
	sum, isList := l.Lister.Add(other).(traits.Lister)
	more, ok := other.(traits.Lister)
	if !ok || !isList {
		return types.MaybeNoSuchOverloadErr(other)
	}
	return &foldList{Lister: sum, folded: sync.OnceValue(func() []string {
		if o, ok := other.(*foldList); ok {
			return slices.Concat(l.folded(), o.folded())
		}
		out := slices.Clone(l.folded())
		for it := more.Iterator(); it.HasNext() == types.True; {
			if s, ok := it.Next().(types.String); ok {
				out = append(out, tracker.Fold(string(s)))
			}
		}
		return out
	})}
}

// lazyList makes a foldList when it is first asked for.
type lazyList struct{ list *foldList }

func (l *lazyList) of(list []string, folded func() []string) ref.Val {
	if l.list == nil {
		l.list = &foldList{Lister: types.NewStringList(types.DefaultTypeAdapter, list), folded: folded}
	}
	return l.list
}

func newExprEnv(variables ...string) (*cel.Env, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	subset := &env.LibrarySubset{}
	for _, name := range functions {
		subset.IncludeFunctions = append(subset.IncludeFunctions, env.NewFunction(name))
	}
	opts := []cel.EnvOption{
		cel.CustomTypeAdapter(registry), cel.CustomTypeProvider(exprTypes{registry}),
		cel.StdLib(cel.StdLibSubset(subset)),
		cel.Function("fold", cel.Overload("fold_string", []*cel.Type{cel.StringType}, cel.StringType,
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				s, ok := v.(types.String)
				if !ok {
					return types.MaybeNoSuchOverloadErr(v)
				}
				return types.String(tracker.Fold(string(s)))
			}))),
		cel.HomogeneousAggregateLiterals(),
		cel.ASTValidators(cel.ValidateComprehensionNestingLimit(whenLoopsMax)),
		cel.ParserRecursionLimit(whenDepthMax), cel.ParserErrorRecoveryLimit(5),
		cel.ParserExpressionSizeLimit(WhenMaxBytes), cel.ExpressionNodeLimit(whenNodesMax),
	}
	for _, v := range variables {
		opts = append(opts, cel.Variable(v, map[string]*cel.Type{"card": cardType, "event": eventType, "actor": actorType}[v]))
	}
	e, err := cel.NewCustomEnv(opts...)
	if err != nil {
		return nil, err
	}
	// The first error makes the list of names that errors suggest from, in the
	// type checker that all compilations share, and cel-go v0.33.2 reads it
	// there without a lock: make it before there are others.
	if _, issues := e.Compile("undeclared"); issues.Err() == nil {
		return nil, errors.New("an undeclared name compiles")
	}
	return e, nil
}

// exprCost says how much work the largest card makes.
type exprCost struct{}

// EstimateSize implements cost.Estimator: in bytes, or entries.
func (exprCost) EstimateSize(n cost.AstNode) *cost.SizeEstimate {
	path := n.Path()
	if len(path) == 0 {
		return nil
	}
	var most uint64
	switch last := path[len(path)-1]; last {
	case "labels", "added", "removed":
		most = tracker.LabelsMax
	case "assignees":
		most = tracker.AssigneesMax
	case "@items":
		most = max(tracker.LabelMaxBytes, tracker.AssigneeMaxBytes)
	case "title", "url", "repo", "name", "id", "error":
		most = tracker.TitleMaxBytes
	case "column", "board", "from", "to", "kind", "source", "state", "reason", "subscription", "bot", "projection":
		most = tracker.LabelMaxBytes
	default:
		return nil
	}
	return &cost.SizeEstimate{Min: 0, Max: most}
}

// foldGrowth is how many times as long a text can get by folding.
const foldGrowth = 3

// EstimateCallCost implements cost.Estimator.
func (x exprCost) EstimateCallCost(function, _ string, _ *cost.AstNode, args []cost.AstNode) *cost.CallEstimate {
	if function != "fold" || len(args) != 1 {
		return nil
	}
	size := args[0].ComputedSize()
	if size == nil {
		size = x.EstimateSize(args[0])
	}
	if size == nil {
		return nil
	}
	return &cost.CallEstimate{
		CostEstimate: cost.Estimate{Min: 1, Max: foldCost(size.Max)},
		ResultSize:   &cost.SizeEstimate{Min: 0, Max: foldGrowth * size.Max},
	}
}

// CallCost implements cost.ActualCostEstimator.
func (exprCost) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	if function != "fold" || len(args) != 1 {
		return nil
	}
	s, _ := args[0].(types.String)
	c := foldCost(uint64(len(s)))
	return &c
}

func foldCost(size uint64) uint64 { return 1 + size/4 }
