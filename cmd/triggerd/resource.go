package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/triggerd/triggerd/internal/client"
)

// What the commands of the kinds of things have in common that people configure:
// boards, bots, hooks, subscriptions and projections.

// resource is one such kind.
type resource struct {
	// one is what one is called, path where the API lists them, and command
	// the command that does.
	one, path, command string
	cols               []column
	// spec are the fields that people set.
	spec []string
	// secret says that it has one, which is made if none is given.
	secret bool
}

// kind is a type for each resource, so that its commands are types of their
// own.
type kind interface{ resource() *resource }

// hint says how to find what is there.
func (r *resource) missing(err error, tenant, id string) error {
	return missing(err, "there is no %s %s of tenant %s: `triggerd %s ls --tenant %s` lists them", r.one, id, tenant, r.command, tenant)
}

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// findMax is how many things of a kind are looked through for a name: more than
// a tenant may have.
const findMax = 10_000

// find returns the id of the thing that is named by its id or its name.
func (a *api) find(ctx context.Context, tenant string, r *resource, named string) (string, error) {
	if uuidForm.MatchString(named) {
		return named, nil
	}
	items, _, err := a.List(ctx, tenantPath(tenant, r.path), nil, findMax)
	if err != nil {
		return "", noTenant(tenant, err)
	}
	var found []string
	for _, text := range items {
		var thing struct {
			ID   string `json:"id"`
			Name string `json:"name"`
		}
		if err := json.Unmarshal(text, &thing); err != nil {
			return "", err
		}
		if thing.ID == named {
			return thing.ID, nil
		}
		if thing.Name == named {
			found = append(found, thing.ID)
		}
	}
	switch len(found) {
	case 0:
		return "", r.missing(&client.Error{Status: http.StatusNotFound, Problem: true}, tenant, named)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%d %s of tenant %s are called %s: give one's id: %s", len(found), r.path, tenant, named, strings.Join(found, ", "))
}

// thing calls f with the path of the thing that is named.
func thing[K kind](ctx context.Context, a *api, tenant, named string, f func(path string) error) error {
	var k K
	r := k.resource()
	id, err := a.find(ctx, tenant, r, named)
	if err != nil {
		return err
	}
	return r.missing(f(tenantPath(tenant, r.path, id)), tenant, named)
}

type lsCmd[K kind] struct {
	tenantFlag
	listFlags
	apiFlags
}

// Run lists.
func (c *lsCmd[K]) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	var k K
	r := k.resource()
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		return noTenant(c.Tenant, c.list(ctx, a, c.path(r.path), nil, r.cols))
	})
}

// namedFlags name one thing.
type namedFlags struct {
	ID string `arg:"" help:"Its id, or its name."`
	tenantFlag
}

type showCmd[K kind] struct {
	namedFlags
	outputFlag
	apiFlags
}

// Run shows one.
func (c *showCmd[K]) Run(ctx context.Context, std streams) error {
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		return thing[K](ctx, a, c.Tenant, c.ID, func(path string) error {
			var text json.RawMessage
			if _, err := a.Get(ctx, path, nil, &text); err != nil {
				return err
			}
			return c.show(a.out, text)
		})
	})
}

type deleteCmd[K kind] struct {
	namedFlags
	apiFlags
}

// Run deletes one.
func (c *deleteCmd[K]) Run(ctx context.Context, std streams) error {
	var k K
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		return thing[K](ctx, a, c.Tenant, c.ID, func(path string) error {
			var left struct {
				Dangling []struct {
					Kind string `json:"kind"`
					ID   string `json:"id"`
					Name string `json:"name"`
				} `json:"dangling"`
			}
			if _, err := a.Do(ctx, client.Request{Method: http.MethodDelete, Path: path}, &left); err != nil {
				return err
			}
			for _, d := range left.Dangling {
				a.note("the %s %s (%s) still refers to it", d.Kind, d.Name, d.ID)
			}
			return a.say("%s %s is deleted", k.resource().one, c.ID)
		})
	})
}

// setter sets the fields of a body that flags were given for.
type setter[F any] interface {
	*F
	set(ctx context.Context, a *api, tenant string, body item) error
}

type createCmd[K kind, F any, P setter[F]] struct {
	Name string `arg:"" optional:"" help:"What it is called; or give it with --file."`
	tenantFlag
	Flags F      `embed:""`
	File  string `short:"f" env:"-" help:"Its fields as the API has them, as YAML or JSON; flags win over it." placeholder:"FILE"`
	outputFlag
	apiFlags
}

// Run makes one.
func (c *createCmd[K, F, P]) Run(ctx context.Context, std streams) error {
	var k K
	r := k.resource()
	body, err := bodyOf(c.File)
	if err != nil {
		return err
	}
	if c.Name != "" {
		body["name"] = c.Name
	}
	if body["name"] == nil {
		return errors.New("give its name, or a --file with one")
	}
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		if err := P(&c.Flags).set(ctx, a, c.Tenant, body); err != nil {
			return err
		}
		var text json.RawMessage
		if err := a.Create(ctx, c.path(r.path), body, &text); err != nil {
			return noTenant(c.Tenant, err)
		}
		if i, err := decodeItem(text); err == nil && r.secret && body["secret"] == nil && i["secret"] == nil {
			a.note("The answer with its secret was lost: `triggerd %s rotate %s --tenant %s` makes another.", r.command, i.str("id"), c.Tenant)
		}
		return c.made(a, text)
	})
}

// made shows what was made, and says if there is a secret in it.
func (f outputFlag) made(a *api, text json.RawMessage) error {
	if i, err := decodeItem(text); err == nil && i["secret"] != nil {
		a.note("Keep the secret, it is not shown again.")
	}
	return f.show(a.out, text)
}

type editCmd[K kind, F any, P setter[F]] struct {
	namedFlags
	Name  string `env:"-" help:"What it is called from now on." placeholder:"NAME"`
	Flags F      `embed:""`
	File  string `short:"f" env:"-" help:"Fields as the API has them, as YAML or JSON; flags win over it." placeholder:"FILE"`
	outputFlag
	apiFlags
}

// editTries is how often an edit is made anew because somebody else's came
// between.
const editTries = 5

// Run edits one: what no flag and no file names stays as it is.
func (c *editCmd[K, F, P]) Run(ctx context.Context, std streams) error {
	var k K
	change, err := bodyOf(c.File)
	if err != nil {
		return err
	}
	if c.Name != "" {
		change["name"] = c.Name
	}
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		if err := P(&c.Flags).set(ctx, a, c.Tenant, change); err != nil {
			return err
		}
		if len(change) == 0 {
			return errors.New("say what is to change: a flag, or --file")
		}
		return thing[K](ctx, a, c.Tenant, c.ID, func(path string) error {
			text, err := replace(ctx, a, path, k.resource().spec, change)
			if err != nil {
				return err
			}
			return c.show(a.out, text)
		})
	})
}

// replace replaces the thing at the path by itself with some fields changed.
func replace(ctx context.Context, a *api, path string, spec []string, change item) (out json.RawMessage, err error) {
	for range editTries {
		var text json.RawMessage
		etag, err := a.Get(ctx, path, nil, &text)
		if err != nil {
			return nil, err
		}
		was, err := decodeItem(text)
		if err != nil {
			return nil, err
		}
		next := item{}
		for _, field := range spec {
			if was[field] != nil {
				next[field] = was[field]
			}
		}
		next.merge(change)
		_, err = a.Do(ctx, client.Request{Method: http.MethodPut, Path: path, Body: next, IfMatch: etag}, &out)
		if !isStatus(err, http.StatusPreconditionFailed) {
			return out, err
		}
	}
	return nil, errors.New("others change it all the time: try again")
}

// merge sets the fields of change, and those of mappings one by one.
func (i item) merge(change item) {
	for name, v := range change {
		was, now := mapping(i[name]), mapping(v)
		if was == nil || now == nil {
			i[name] = v
			continue
		}
		was.merge(now)
		i[name] = was
	}
}

// mapping returns v if it is one, else nil.
func mapping(v any) item {
	switch v := v.(type) {
	case item:
		return v
	case map[string]any:
		return v
	}
	return nil
}

// bodyMaxBytes is the largest file with fields that is read.
const bodyMaxBytes = 256 << 10

// bodyOf reads fields from a file; none if that is not given.
func bodyOf(path string) (item, error) {
	body := item{}
	if path == "" {
		return body, nil
	}
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for name, v := range fields {
		body[name] = v
	}
	return body, nil
}

// readFile reads a small file.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the file: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, bodyMaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the file: %w", err)
	}
	if len(text) > bodyMaxBytes {
		return nil, fmt.Errorf("%s: at most %d bytes", path, bodyMaxBytes)
	}
	return text, nil
}

type (
	enableCmd[K kind] struct {
		namedFlags
		apiFlags
	}
	disableCmd[K kind] struct {
		namedFlags
		apiFlags
	}
)

// Run enables one.
func (c *enableCmd[K]) Run(ctx context.Context, std streams) error {
	return turn[K](ctx, std, &c.namedFlags, &c.apiFlags, "enable")
}

// Run disables one.
func (c *disableCmd[K]) Run(ctx context.Context, std streams) error {
	return turn[K](ctx, std, &c.namedFlags, &c.apiFlags, "disable")
}

func turn[K kind](ctx context.Context, std streams, n *namedFlags, f *apiFlags, verb string) error {
	var k K
	return n.of(ctx, f, std, func(a *api) error {
		return thing[K](ctx, a, n.Tenant, n.ID, func(path string) error {
			if err := a.Post(ctx, path+"/"+verb, nil, nil); err != nil {
				return err
			}
			return a.say("%s %s is %sd", k.resource().one, n.ID, verb)
		})
	})
}

// secretFlag has a secret.
type secretFlag struct {
	SecretFile string `env:"-" help:"File with its secret; one is made and shown if it is not given." placeholder:"FILE"`
}

func (f *secretFlag) set(body item) error {
	if f.SecretFile == "" {
		return nil
	}
	text, err := readFile(f.SecretFile)
	if err != nil {
		return err
	}
	body["secret"] = strings.TrimRight(string(text), "\r\n")
	return nil
}

type rotateCmd[K kind] struct {
	namedFlags
	secretFlag
	Finish bool `env:"-" help:"End the rotation: the new secret alone is good."`
	Cancel bool `env:"-" help:"Give the rotation up: the secret that it had stays."`
	outputFlag
	apiFlags
}

// Run begins a rotation, or ends one.
func (c *rotateCmd[K]) Run(ctx context.Context, std streams) error {
	if (c.Finish && c.Cancel) || ((c.Finish || c.Cancel) && c.SecretFile != "") {
		return errors.New("give one of --finish, --cancel and --secret-file: a rotation is begun, then finished or given up")
	}
	body := item{}
	if err := c.set(body); err != nil {
		return err
	}
	var k K
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		return thing[K](ctx, a, c.Tenant, c.ID, func(path string) error {
			switch {
			case c.Finish:
				return c.end(ctx, a, path+"/secret/previous", k.resource().one+" "+c.ID+": the new secret alone is good")
			case c.Cancel:
				return c.end(ctx, a, path+"/secret/next", k.resource().one+" "+c.ID+": the secret that it had stays")
			}
			var text json.RawMessage
			if err := a.Post(ctx, path+"/secret", body, &text); err != nil {
				return err
			}
			a.note("Both secrets are good until --finish, which leaves the new one alone.")
			return c.made(a, text)
		})
	})
}

func (c *rotateCmd[K]) end(ctx context.Context, a *api, path, says string) error {
	if _, err := a.Do(ctx, client.Request{Method: http.MethodDelete, Path: path}, nil); err != nil {
		return err
	}
	return a.say("%s", says)
}
