package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

//go:generate go test -run TestConfigurationDoc . -update-docs

var updateDocs = flag.Bool("update-docs", false, "write the reference into docs/configuration.md")

const configurationDoc = "../../docs/configuration.md"

// sharedBy is by how many commands a flag has to be had to be listed once.
const sharedBy = 4

// flagRow is a flag as the reference lists it.
func flagRow(f *kong.Flag) string {
	cell := func(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
	name := "`--" + f.Name + "`"
	if f.Short != 0 {
		name = "`-" + string(f.Short) + "`, " + name
	}
	env := make([]string, len(f.Envs))
	for i, e := range f.Envs {
		env[i] = "`" + e + "`"
	}
	def := ""
	switch {
	case f.Required:
		def = "required"
	case f.Default != "":
		def = "`" + f.Default + "`"
	case f.IsBool():
		def = "`false`"
	}
	return fmt.Sprintf("| %s | %s | %s | %s |\n", name, strings.Join(env, ", "), def, cell(f.Help))
}

// reference is all commands and flags in Markdown, made of what the command
// line is parsed by.
func reference(t *testing.T) string {
	t.Helper()
	var c cli
	parser, err := kong.New(&c, kong.Name("triggerd"), kong.DefaultEnvars("TRIGGERD"))
	require.NoError(t, err)
	leaves := parser.Model.Leaves(true)
	flags := func(leaf *kong.Node) (out []*kong.Flag) {
		for _, f := range leaf.Flags {
			if !f.Hidden && f.Name != "help" {
				out = append(out, f)
			}
		}
		return out
	}
	// Of flags of one name that differ, one is listed once: the most frequent.
	count, shared := make(map[string]int), make(map[string]string)
	for _, leaf := range leaves {
		for _, f := range flags(leaf) {
			row := flagRow(f)
			if count[row]++; count[row] >= sharedBy && count[row] > count[shared[f.Name]] {
				shared[f.Name] = row
			}
		}
	}
	var order []string
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		order = append(order, shared[name])
	}
	const head = "\n| flag | variable | default | |\n|---|---|---|---|\n"
	var out strings.Builder
	fmt.Fprintf(&out, "\n### Of several commands\n%s%s", head, strings.Join(order, ""))
	for _, leaf := range leaves {
		call := []string{"triggerd", leaf.Path()}
		for _, p := range leaf.Positional {
			call = append(call, p.Summary())
		}
		fmt.Fprintf(&out, "\n### `%s`\n\n%s\n", strings.Join(call, " "), leaf.Help)
		var own, with []string
		for _, f := range flags(leaf) {
			if row := flagRow(f); row == shared[f.Name] {
				with = append(with, "`--"+f.Name+"`")
			} else {
				own = append(own, row)
			}
		}
		if len(own) > 0 {
			fmt.Fprintf(&out, "%s%s", head, strings.Join(own, ""))
		}
		if len(with) > 0 {
			slices.Sort(with)
			fmt.Fprintf(&out, "\nWith %s.\n", strings.Join(with, ", "))
		}
	}
	return out.String() + "\n"
}

func TestConfigurationDoc(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- flags: written by make docs -->\n", "<!-- end of flags -->\n"
	text, err := os.ReadFile(configurationDoc)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := before + begin + reference(t) + end + after
	if *updateDocs {
		require.NoError(t, os.WriteFile(configurationDoc, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "docs/configuration.md is not what the command line has: run `make docs`")
}
