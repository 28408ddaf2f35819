package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Limits of an expression. What is refused at the door is counted, so that it
// is the same on every machine (docs/triggers-yaml.md).
const (
	// WhenMaxBytes is the longest `when`.
	WhenMaxBytes = 4096
	// whenDepthMax is how deep an expression may nest, whenNodesMax how many
	// nodes it may have once its macros are spelled out.
	whenDepthMax = 40
	whenNodesMax = 2000
	// whenLoopsMax is how deep loops (exists, all, map, filter) may nest.
	whenLoopsMax = 2
	// whenCostMax is the most that an evaluation may cost, in CEL's units: the
	// estimate for the largest card when it is saved, and the count while it
	// runs.
	whenCostMax = 20_000
	// whenTimeMax ends a loop that the count did not, on a machine that hangs.
	whenTimeMax = time.Second
	// whenErrorMax is the longest message of a fault.
	whenErrorMax = 300
)

// expression is a compiled CEL expression. Safe for concurrent use.
type expression struct {
	program cel.Program
	out     *types.Type
	// loops: it may need to be interrupted.
	loops bool
	// constant: it asks for nothing of the card or the event.
	constant bool
}

// exprError is what is wrong with an expression, with the place: line and
// column count from 1.
type exprError struct {
	line, column int
	message      string
}

func (e *exprError) Error() string {
	if e.line == 0 {
		return e.message
	}
	return fmt.Sprintf("line %d, column %d: %s", e.line, e.column, e.message)
}

// compileWhen compiles a subscription's `when`; the error is a
// *tracker.FieldError.
func compileWhen(source string, onEvent bool) (*expression, error) {
	env := whenOfCard
	if onEvent {
		env = whenOfEvent
	}
	x, err := compileExpression(env, source, WhenMaxBytes)
	switch {
	case err != nil:
		return nil, tracker.Fieldf("when", "%s", err.Error())
	case !x.out.IsExactType(cel.BoolType):
		return nil, tracker.Fieldf("when", "must be true or false: it yields %s", x.out)
	case x.constant:
		return nil, tracker.Fieldf("when", "asks for nothing of the card or the event, and so is always the same")
	}
	return x, nil
}

// The environments: what an expression may name. Each is made when it is first
// needed.
var (
	whenOfCard  = sync.OnceValues(func() (*cel.Env, error) { return newExprEnv("card") })
	whenOfEvent = sync.OnceValues(func() (*cel.Env, error) { return newExprEnv("card", "event", "actor") })
)

func compileExpression(env func() (*cel.Env, error), source string, maxBytes int) (*expression, *exprError) {
	if len(source) > maxBytes {
		return nil, &exprError{message: fmt.Sprintf("at most %d bytes", maxBytes)}
	}
	if strings.TrimSpace(source) == "" {
		return nil, &exprError{1, 1, "is empty"}
	}
	e, err := env()
	if err != nil {
		return nil, &exprError{message: err.Error()}
	}
	checked, issues := e.Compile(source)
	if issues.Err() != nil {
		return nil, firstIssue(issues)
	}
	x := &expression{out: checked.OutputType(), constant: true}
	if err := x.look(checked.NativeRep()); err != nil {
		return nil, err
	}
	cost, err := e.EstimateCost(checked, exprCost{})
	if err != nil {
		return nil, &exprError{message: clip(err.Error(), whenErrorMax)}
	}
	if cost.Max > whenCostMax {
		return nil, &exprError{message: fmt.Sprintf("costs too much: up to %d units on the largest card, at most %d are allowed", cost.Max, whenCostMax)}
	}
	opts := []cel.ProgramOption{
		cel.EvalOptions(cel.OptOptimize), cel.CostLimit(whenCostMax), cel.CostTracking(exprCost{}),
	}
	if x.loops {
		opts = append(opts, cel.InterruptCheckFrequency(100))
	}
	if x.program, err = e.Program(checked, opts...); err != nil {
		return nil, &exprError{message: clip(err.Error(), whenErrorMax)}
	}
	return x, nil
}

// look refuses what the type check lets pass: an object as a value (a card, not
// a field of it), for which neither comparing nor copying has a counted cost.
func (x *expression) look(a *ast.AST) (fault *exprError) {
	refuse := func(e ast.Expr, message string) {
		if fault == nil {
			at := a.SourceInfo().GetStartLocation(e.ID())
			fault = &exprError{at.Line(), at.Column() + 1, message}
		}
	}
	for _, e := range ast.MatchDescendants(ast.NavigateAST(a), ast.AllMatcher()) {
		switch e.Kind() {
		case ast.ComprehensionKind:
			x.loops = true
		case ast.StructKind:
			refuse(e, "objects can't be made")
			continue
		case ast.IdentKind:
			if slices.Contains([]string{"card", "event", "actor"}, e.AsIdent()) {
				x.constant = false
			}
		}
		if t := a.GetType(e.ID()); t == nil || t.Kind() != types.StructKind {
			continue
		}
		if parent, ok := e.Parent(); !ok || parent.Kind() != ast.SelectKind {
			refuse(e, "is an object: name one of its fields")
		}
	}
	return fault
}

// firstIssue is the first thing that the compiler found.
func firstIssue(issues *cel.Issues) *exprError {
	errs := issues.Errors()
	if len(errs) == 0 {
		return &exprError{message: clip(issues.Err().Error(), whenErrorMax)}
	}
	first := slices.MinFunc(errs, func(a, b *common.Error) int {
		if a.Location.Line() != b.Location.Line() {
			return a.Location.Line() - b.Location.Line()
		}
		return a.Location.Column() - b.Location.Column()
	})
	x := &exprError{first.Location.Line(), first.Location.Column() + 1, clip(first.Message, whenErrorMax)}
	if x.line < 1 {
		x.line = 0 // of the whole text, as nesting is
	}
	for _, name := range []string{"event", "actor"} {
		if strings.HasPrefix(first.Message, "undeclared reference to '"+name+"'") {
			x.message = name + " can be named only with on.kinds, on.from or on.to: without them the subscription fires when its conditions become true, whatever brings that about"
		}
	}
	return x
}

// eval evaluates the expression on one side of an event.
func (x *expression) eval(f *facts, card *cardFacts) (types.Bool, error) {
	v, err := x.value(f, card)
	if err != nil {
		return false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, errors.New("did not yield true or false")
	}
	return b, nil
}

func (x *expression) holds(f *facts, card *cardFacts) (bool, error) {
	b, err := x.eval(f, card)
	if err != nil {
		return false, fmt.Errorf("when: %w", err)
	}
	return bool(b), nil
}

func (x *expression) value(f *facts, card *cardFacts) (out ref.Val, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	vars := &exprVars{f: f, card: card}
	if !x.loops {
		v, _, err := x.program.Eval(vars)
		return v, plainError(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), whenTimeMax)
	defer cancel()
	v, _, err := x.program.ContextEval(ctx, vars)
	return v, plainError(err)
}

// plainError keeps what an evaluation says short.
func plainError(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(clip(err.Error(), whenErrorMax))
}

// exprVars are the variables of one evaluation.
type exprVars struct {
	f    *facts
	card *cardFacts
}

// ResolveName implements interpreter.Activation.
func (v *exprVars) ResolveName(name string) (any, bool) {
	switch name {
	case "card":
		return v.card, true
	case "event":
		return v.f, true
	case "actor":
		return &v.f.e.Actor, true
	}
	return nil, false
}

// Parent implements interpreter.Activation.
func (*exprVars) Parent() interpreter.Activation { return nil }

// functions are those of CEL's standard library that an expression may call.
// Not there: what makes patterns of text, times, bytes, and what undoes types.
var functions = []string{
	operators.Conditional, operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot,
	operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
	operators.Add, operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo, operators.Negate,
	operators.Index, operators.In, operators.NotStrictlyFalse,
	"size", "contains", "startsWith", "endsWith", "string", "int", "double",
}
