package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const logsDoc = "../../docs/ops/logs.md"

// logField are zerolog's methods that take a key and a value.
var logField = regexp.MustCompile(`^(Str|Strs|Stringer|Bool|Bools|U?[Ii]nt(8|16|32|64)?|U?Ints(8|16|32|64)?|Uint(8|16|32|64)?|Float(32|64)|Time|Times|Dur|Durs|TimeDiff|AnErr|Errs|Interface|Any|Bytes|Hex|RawJSON|Dict|Array|Object|IPAddr|Type)$`)

// logLevel are the methods that begin a line, or a logger.
var logLevel = map[string]string{"Debug": "debug", "Info": "info", "Warn": "warn", "Error": "error", "WithLevel": "any", "With": "any", "Fatal": "fatal", "Panic": "panic"}

// logIDs are the keys of what is named by ids: a value that ends so goes by
// this key, wherever it is logged.
var logIDs = []struct{ value, key string }{
	{`(?i)\btenant(\.ID|ID)?$`, "tenant"},
	{`(?i)\bcard(\.ID|ID)$`, "card"},
	{`(?i)\b(subscription|sub)(\.ID|ID)$`, "subscription"},
	{`(?i)\bbot(\.ID|ID)$`, "bot"},
	{`(?i)\bhook(\.ID|ID)$`, "hook"},
	{`(?i)\b(row|effect)(\.ID|ID)$`, "effect"},
	{`\bLane$`, "lane"},
	{`\bEventSeq$`, "seq"},
	{`\bRunID$`, "run"},
	{`\bdeliveryID$`, "delivery"},
	{`\bAttempts$`, "attempt"},
}

type logCall struct{ at, key, value, level, message string }

// logCalls are the keys and the messages in a Go file.
func logCalls(t *testing.T, path string, src any) (out []logCall) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, 0)
	require.NoError(t, err)
	// levelOf goes back through the calls of a chain to the one that began it.
	levelOf := func(call *ast.CallExpr) string {
		for {
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return ""
			}
			if level, ok := logLevel[sel.Sel.Name]; ok && len(call.Args) < 2 {
				return level
			}
			if call, ok = sel.X.(*ast.CallExpr); !ok {
				return ""
			}
		}
	}
	literal := func(e ast.Expr) string {
		lit, ok := e.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return ""
		}
		s, err := strconv.Unquote(lit.Value)
		require.NoError(t, err)
		return s
	}
	text := func(e ast.Expr) string {
		var parts []string
		ast.Inspect(e, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				parts = append(parts, id.Name)
			}
			return true
		})
		return strings.Join(parts, ".")
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		at := fset.Position(call.Pos()).String()
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "unstored" && len(call.Args) == 3 {
				out = append(out, logCall{at: at, level: levelOf(call.Args[1].(*ast.CallExpr)), message: literal(call.Args[2])})
			}
			return true
		}
		level := levelOf(call)
		switch {
		case logField.MatchString(sel.Sel.Name) && len(call.Args) == 2 && (level != "" || literal(call.Args[0]) != ""):
			key := literal(call.Args[0])
			if key == "" {
				key = "(no literal)"
			}
			out = append(out, logCall{at: at, key: key, value: text(call.Args[1])})
		case sel.Sel.Name == "Msg" && len(call.Args) == 1 && level != "":
			out = append(out, logCall{at: at, level: level, message: literal(call.Args[0])})
		case sel.Sel.Name == "Msgf" && level != "":
			out = append(out, logCall{at: at, key: "(Msgf)"})
		}
		return true
	})
	return out
}

// wrongLogKeys are the calls with a key that is not known, or not that of its
// value.
func wrongLogKeys(calls []logCall, known map[string]bool) (out []string) {
	for _, c := range calls {
		if c.key == "" {
			continue
		}
		if !known[c.key] {
			out = append(out, c.at+": unknown key "+c.key)
			continue
		}
		for _, id := range logIDs {
			if c.key != id.key && regexp.MustCompile(id.value).MatchString(c.value) {
				out = append(out, c.at+": "+c.value+" goes by "+id.key+", not by "+c.key)
			}
		}
	}
	return out
}

// Each key of a log line is in docs/ops/logs.md, each message with its level
// too, and nothing else is.
func TestLogsDoc(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(logsDoc)
	require.NoError(t, err)
	section := func(name string) string {
		_, rest, ok := strings.Cut(string(text), "\n## "+name+"\n")
		require.True(t, ok, name)
		rest, _, _ = strings.Cut(rest, "\n## ")
		return rest
	}
	known, unused := make(map[string]bool), make(map[string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(section("Keys"), -1) {
		known[m[1]], unused[m[1]] = true, true
	}
	told := make(map[[2]string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| ([a-z]+) \\| `([^`]+)` \\|").FindAllStringSubmatch(section("Messages"), -1) {
		told[[2]string{m[1], m[2]}] = false
	}
	var calls []logCall
	for _, dir := range []string{"../../cmd", "../../pkg", "../../internal"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, ".gen.go") {
				calls = append(calls, logCalls(t, path, nil)...)
			}
			return err
		}))
	}
	require.Greater(t, len(calls), 150, "the walk finds them")
	require.Empty(t, wrongLogKeys(calls, known))
	for _, c := range calls {
		delete(unused, c.key)
		if c.message == "" || c.level == "any" {
			continue
		}
		row := [2]string{c.level, c.message}
		require.Contains(t, told, row, c.at)
		told[row] = true
	}
	require.Empty(t, unused, "keys that no line has")
	for row, seen := range told {
		require.True(t, seen, "no line says so: %v", row)
	}
}

// The walk sees what it is for.
func TestLogsDocRefuses(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"tenant": true, "effect": true, "card": true}
	for line, says := range map[string]string{
		`log.Info().Str("tenant", e.TenantID).Msg("x")`:                  "",
		`log.Info().Err(err).Str("tenant_id", e.TenantID).Msg("x")`:      "unknown key tenant_id",
		`log.With().Str("effect", row.ID).Str("colour", c).Logger()`:     "unknown key colour",
		`log.Warn().Str(key, v).Msg("x")`:                                "unknown key (no literal)",
		`e.Str("colour", "red")`:                                         "unknown key colour",
		`log.Warn().Str("tenant", row.CardID).Msg("x")`:                  "goes by card",
		`log.Warn().Str("card", string(row.TenantID)).Msg("x")`:          "goes by tenant",
		`s.p.Logger.WithLevel(l).Int64("colour", int64(3)).Msg("x")`:     "unknown key colour",
		`log.Error().Str("tenant", tenantID).Msgf("x %s", "colour")`:     "unknown key (Msgf)",
		`a.Logger.Warn().Err(err).Interface("colour", nil).Msg("x" + y)`: "unknown key colour",
	} {
		wrong := wrongLogKeys(logCalls(t, "x.go", "package x\nfunc f() { "+line+" }"), known)
		if says == "" {
			require.Empty(t, wrong, line)
			continue
		}
		require.Len(t, wrong, 1, line)
		require.Contains(t, wrong[0], says)
	}
}
