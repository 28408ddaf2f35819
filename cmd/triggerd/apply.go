package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/triggerd/triggerd/internal/client"
	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/server/apply"
	"github.com/triggerd/triggerd/pkg/trigger"
)

type applyCmd struct {
	File   string `short:"f" required:"" help:"The triggers.yaml; paths in it are relative to its folder." placeholder:"FILE"`
	DryRun bool   `help:"Say what would change, and change nothing."`
	Check  bool   `env:"-" help:"As --dry-run, and end with 2 if anything would change."`
	outputFlag
	apiFlags
}

// Run applies a file. What is wrong with the file alone is said without a
// server or a database.
func (c *applyCmd) Run(ctx context.Context, std streams) error {
	file, err := readTriggers(c.File)
	if err != nil {
		return err
	}
	secrets, err := file.file.Secrets(os.LookupEnv, file.readFile)
	if err != nil {
		return err
	}
	body := server.ApplyBody{File: file.text, DryRun: c.DryRun || c.Check}
	for ref, text := range secrets {
		body.Secrets = append(body.Secrets, server.ApplySecret{Env: ref.Env, File: ref.File, Text: text})
	}
	a, err := c.open(ctx, std, !body.DryRun)
	if err != nil {
		return err
	}
	defer a.Close()
	result, err := file.post(ctx, a, body)
	if err != nil {
		return file.place(err)
	}
	if c.json() {
		err = printJSON(a.out, result)
	} else {
		_, err = io.WriteString(a.out, result.String())
	}
	if err == nil && c.Check && result.Changed() {
		return errDiffers
	}
	return err
}

// post has the API apply the file: as an admin, or else as an editor of the one
// tenant that it describes.
func (f *triggersFile) post(ctx context.Context, a *api, body server.ApplyBody) (result apply.Result, err error) {
	err = a.Post(ctx, client.Path("apply"), body, &result)
	if !isStatus(err, http.StatusNotFound) && !isStatus(err, http.StatusForbidden) {
		return result, err
	}
	tenants := f.file.Tenants()
	if len(tenants) != 1 {
		return result, errors.New("an admin's token is required to apply a file of several tenants")
	}
	return result, noTenant(tenants[0], a.Post(ctx, tenantPath(tenants[0], "apply"), body, &result))
}

// place names the file for the lines of it that the API refuses.
func (f *triggersFile) place(err error) error {
	var refused *client.Error
	if !errors.As(err, &refused) {
		return err
	}
	var errs apply.Errors
	for _, field := range refused.Fields {
		if field.Line == 0 {
			return err
		}
		errs = append(errs, apply.Error{File: f.path, Line: field.Line, Path: field.Field, Message: field.Message})
	}
	if len(errs) == 0 {
		return err
	}
	return errs
}

// triggersFile is a triggers.yaml that is well formed.
type triggersFile struct {
	path, text string
	file       *apply.File
}

func readTriggers(path string) (*triggersFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	file, err := apply.Parse(path, data)
	if err != nil {
		return nil, err
	}
	return &triggersFile{path, string(data), file}, nil
}

// apply applies the file to a store and shows what that changes.
func (f *triggersFile) apply(ctx context.Context, store trigger.Store, sealer trigger.Sealer, dryRun bool, std streams) error {
	result, err := apply.Apply(ctx, f.file, apply.Params{
		Store: store, Sealer: sealer, Clock: store, Getenv: os.LookupEnv, ReadFile: f.readFile,
		CheckURL: launch.CheckURL, ParseSecret: launch.ParseSecret, DryRun: dryRun,
	})
	if err != nil && !result.Changed() {
		return err
	}
	if _, werr := result.WriteTo(std.out); err == nil {
		err = werr
	}
	return err
}

func (f *triggersFile) readFile(path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(f.path), path)
	}
	return os.ReadFile(path)
}

type exportCmd struct {
	Tenant string `help:"Only this tenant; all, which takes an admin's token, by default." placeholder:"ID"`
	apiFlags
}

// Run writes a triggers.yaml.
func (c *exportCmd) Run(ctx context.Context, std streams) error {
	if c.Tenant != "" {
		if err := checkTenant(c.Tenant); err != nil {
			return err
		}
	}
	return c.with(ctx, std, func(a *api) error {
		tenants := []string{c.Tenant}
		if c.Tenant == "" {
			var err error
			if tenants, err = allTenants(ctx, a); err != nil {
				return err
			}
		}
		// All are read before any is written: half an export looks like one.
		var file strings.Builder
		for i, id := range tenants {
			var x apply.Exported
			if _, err := a.Get(ctx, tenantPath(id, "export"), nil, &x); err != nil {
				return noTenant(id, err)
			}
			for _, l := range x.LeftOut {
				a.note("left out: %s %s of %s: %s", l.Kind, l.Name, id, l.Why)
			}
			head, things, ok := strings.Cut(x.File, "tenants:\n")
			if !ok {
				return fmt.Errorf("tenant %s: the server's export is none", id)
			}
			if i == 0 {
				file.WriteString(head + "tenants:\n" + things)
			} else {
				_, comments, _ := strings.Cut(head, "\n") // the schema is named once
				file.WriteString(comments + things)
			}
		}
		if len(tenants) == 0 {
			file.WriteString("tenants: []\n")
		}
		_, err := io.WriteString(a.out, file.String())
		return err
	})
}

// allTenants lists the tenants' ids, as many as a file may describe.
func allTenants(ctx context.Context, a *api) (ids []string, err error) {
	items, next, err := a.List(ctx, client.Path("tenants"), nil, apply.TenantsMax)
	if err != nil {
		return nil, missing(err, "an admin's token is required to export all tenants: give --tenant for one")
	}
	if next != "" {
		return nil, fmt.Errorf("there are more than %d tenants, which is what one file may describe: export them one by one, with --tenant", apply.TenantsMax)
	}
	for _, text := range items {
		var tenant trigger.TenantStatus
		if err := json.Unmarshal(text, &tenant); err != nil {
			return nil, err
		}
		if tenant.Status != "active" {
			a.note("left out: tenant %s: it is being deleted, or a log alone is left of it", tenant.TenantID)
			continue
		}
		ids = append(ids, tenant.TenantID)
	}
	return ids, nil
}
