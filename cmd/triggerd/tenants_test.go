package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// A tenant is made, looked at, renamed, paused and deleted, on a server and on a
// database.
func TestTenantCommands(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*ops{"server": atServer(t, trigger.RoleAdmin), "database": atDatabase(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Regexp(t, `(?m)^name +Fresh$`, o.ok(t, "tenants", "create", "fresh", "--name", "Fresh"))
			require.Contains(t, o.refused(t, "tenants", "create", "fresh"), "there is a tenant with this id")
			require.Equal(t, "plain", parsed[trigger.TenantStatus](t, o.ok(t, "tenants", "create", "plain", "-o", "json")).Name)
			require.Regexp(t, `(?m)^fresh +active +0`, o.ok(t, "tenants", "ls"), "though it has no log")
			require.Regexp(t, `(?m)^status +active$`, o.ok(t, "tenants", "show", "fresh"))
			require.Regexp(t, `(?m)^name +Fresher$`, o.ok(t, "tenants", "rename", "fresh", "Fresher"))
			require.Contains(t, o.ok(t, "tenants", "pause", "fresh", "--note", "later"), "tenant fresh is paused")
			require.Regexp(t, `fresh +.*later`, o.ok(t, "pauses"))
			require.Contains(t, o.ok(t, "tenants", "resume", "fresh"), "is not paused")

			file := o.ok(t, "export")
			require.Contains(t, file, "- id: fresh", "though it has no log")
			path := filepath.Join(t.TempDir(), "triggers.yaml")
			require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
			require.Contains(t, o.ok(t, "apply", "-f", path, "--check"), "nothing to change")

			r := o.run(t, "tenants", "delete", "fresh")
			require.Zero(t, r.code, r.err)
			require.Contains(t, r.out, "tenant fresh is being deleted")
			require.Contains(t, r.err, "triggerd tenants show fresh")
			require.Contains(t, o.ok(t, "tenants", "delete", "fresh", "--discard"), "is being deleted", "again is no error")
			require.Regexp(t, `(?m)^status +deleting$`, o.ok(t, "tenants", "show", "fresh"))
			require.Regexp(t, `(?m)^fresh +deleting`, o.ok(t, "tenants", "ls"))
			require.Contains(t, o.refused(t, "tenants", "rename", "fresh", "x"), "deleted")
			r = o.run(t, "export")
			require.Zero(t, r.code, r.err)
			require.NotContains(t, r.out, "- id: fresh")
			require.Contains(t, r.out, "- id: plain")
			require.Contains(t, r.err, "left out: tenant fresh")

			for _, args := range []string{"show nowhere", "rename nowhere x", "pause nowhere", "resume nowhere", "delete nowhere"} {
				require.Contains(t, o.missing(t, append([]string{"tenants"}, strings.Fields(args)...)...), "there is no tenant nowhere")
			}
			require.Contains(t, o.refused(t, "tenants", "delete", "S3cret"), "must match")
		})
	}
}

// On a database too, nothing is made in a tenant that is not there, or that is
// going.
func TestNothingIsMadeInNoTenant(t *testing.T) {
	t.Parallel()
	o := atDatabase(t)
	board := []string{"boards", "create", "work", "--column", "a", "--tenant"}
	require.Contains(t, o.missing(t, append(board, "misspelt")...), "there is no tenant misspelt")
	require.Contains(t, o.ok(t, "tenants", "delete", "acme"), "is being deleted")
	require.Contains(t, o.refused(t, append(board, "acme")...), "the tenant is being deleted")
	for _, tenant := range []string{"misspelt", "acme"} {
		made, err := o.store.BoardList(t.Context(), tenant)
		require.NoError(t, err)
		require.Empty(t, made)
	}
}

// What somebody may still want is told of, and how to go on.
func TestTenantDeletionIsRefused(t *testing.T) {
	t.Parallel()
	o := atDatabase(t)
	o.rows(t, 1, 2, trigger.StateFailed)
	said := o.refused(t, "tenants", "delete", "acme")
	require.Contains(t, said, "2 failed")
	require.Contains(t, said, "--discard")
	require.NotContains(t, said, "discard=true")
	require.Contains(t, said, "triggerd effects ls --tenant acme")
	require.Contains(t, o.ok(t, "tenants", "delete", "acme", "--discard"), "is being deleted")
}

// An editor sees its tenant, and can't make or delete one.
func TestTenantCommandsOfAnEditor(t *testing.T) {
	t.Parallel()
	o := atServer(t, trigger.RoleEditor)
	require.Regexp(t, `(?m)^name +acme$`, o.ok(t, "tenants", "show", "acme"))
	for _, args := range []string{"ls", "create fresh", "delete acme", "rename acme x"} {
		r := o.run(t, append([]string{"tenants"}, strings.Fields(args)...)...)
		require.NotZero(t, r.code, args)
		require.Contains(t, r.err, "token", args)
	}
}
