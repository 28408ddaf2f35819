package main

import (
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/client"
)

// A flag that was set by its variable is named with it: nobody sees it on the
// command line.
func TestFlaggedNamesTheVariable(t *testing.T) {
	refused := func() error {
		return &client.Error{Problem: true, Fields: []client.Field{{Field: "body.tenant_id", Message: "no"}}}
	}
	flags := []*kong.Flag{{Value: &kong.Value{Name: "tenant"}, Envs: []string{"TRIGGERD_TENANT"}}}
	require.EqualError(t, flagged(refused(), flags), "--tenant: no")
	t.Setenv("TRIGGERD_TENANT", "acme")
	require.EqualError(t, flagged(refused(), flags), "--tenant (TRIGGERD_TENANT): no")
}
