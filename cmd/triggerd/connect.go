package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/client"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// tokenEnv has the token of calls to a server. There is no flag for it: others
// on the machine see command lines.
const tokenEnv = "TRIGGERD_TOKEN"

// apiFlags choose whose API a command calls: a server's, or one in this process
// on a database.
type apiFlags struct {
	URL       string `name:"url" help:"A server's URL; its token is in TRIGGERD_TOKEN." placeholder:"URL"`
	TokenFile string `help:"With --url: file with the token; TRIGGERD_TOKEN wins over it." placeholder:"FILE"`
	By        string `help:"With --mongo-uri: who does it; the system's user by default." placeholder:"NAME"`

	MongoURI     string        `name:"mongo-uri" help:"In place of --url: MongoDB connection string." placeholder:"URI"`
	Database     string        `help:"Database name." default:"triggerd"`
	StoreTimeout time.Duration `help:"Timeout of one database operation." default:"10s"`
	sealFlags
}

// api is what commands call.
type api struct {
	*client.Client
	streams
	close []func()
	// remote: a server answers, which knows callers by their tokens.
	remote bool
}

func (a *api) Close() {
	a.Client.Close()
	for _, f := range a.close {
		f()
	}
}

// with opens the API that the flags choose, and calls f with it.
func (c *apiFlags) with(ctx context.Context, std streams, f func(*api) error) error {
	a, err := c.open(ctx, std, false)
	if err != nil {
		return err
	}
	defer a.Close()
	return f(a)
}

// open opens the API that the flags choose; of a database with its schema
// applied, if the command may be the first one there.
func (c *apiFlags) open(ctx context.Context, std streams, schema bool) (*api, error) {
	switch {
	case c.URL != "" && c.MongoURI != "":
		return nil, errors.New("--url (TRIGGERD_URL) and --mongo-uri (TRIGGERD_MONGO_URI) are both set: a command calls a server, or works on a database; unset one of them")
	case c.URL == "" && c.MongoURI == "":
		return nil, errors.New("nothing says where: set TRIGGERD_URL (--url) to a server's URL and TRIGGERD_TOKEN to a token, or TRIGGERD_MONGO_URI (--mongo-uri) to a database's")
	case c.URL != "":
		return c.remote(std)
	case c.TokenFile != "":
		return nil, tracker.Fieldf("--token-file", "goes with --url: on a database no token is asked for")
	}
	sealer, err := c.sealer()
	if err != nil {
		return nil, err
	}
	store, err := boardmongo.Connect(ctx, boardmongo.Params{URI: c.MongoURI, Database: c.Database, Timeout: c.StoreTimeout})
	if err != nil {
		return nil, err
	}
	if schema {
		if err := store.SchemaApply(ctx); err != nil {
			closeStore(store)
			return nil, err
		}
	}
	a, err := inProcess(store, sealer, c.by(), std)
	if err != nil {
		closeStore(store)
		return nil, err
	}
	a.close = append(a.close, func() { closeStore(store) })
	return a, nil
}

// inProcess is the API of a store, as an admin of that name calls it.
func inProcess(store trigger.Store, sealer trigger.Sealer, by string, std streams) (*api, error) {
	log := zerolog.New(zerolog.ConsoleWriter{Out: std.err, TimeFormat: time.TimeOnly, NoColor: true}).Level(zerolog.WarnLevel)
	handler := server.NewAPI(server.APIParams{
		Store: store, Sealer: sealer, Logger: log, As: &trigger.Token{Name: by, Role: trigger.RoleAdmin},
	})
	c, err := client.New(client.Params{Handler: handler})
	if err != nil {
		return nil, err
	}
	return &api{Client: c, streams: std}, nil
}

// tenantThere fails if the path is one of a tenant that is not there: a misspelt
// one must not look like one where all is well.
func (a *api) tenantThere(ctx context.Context, path string) error {
	rest, ok := strings.CutPrefix(path, "/v1/tenants/")
	tenant, _, below := strings.Cut(rest, "/")
	if !ok || !below {
		return nil
	}
	_, err := a.Get(ctx, tenantPath(tenant), nil, nil)
	return noTenant(tenant, err)
}

// noTenant says of a 404 what is not there.
func noTenant(tenant string, err error) error {
	return missing(err, "there is no tenant %s, or the token is not for it: `triggerd tenants ls` lists them", tenant)
}

// missingError says that what a command names is not there.
type missingError struct{ what string }

func (e *missingError) Error() string { return e.what }

// missing says of a 404 what is not there, and how to find what is. Other
// errors stay.
func missing(err error, format string, args ...any) error {
	if isStatus(err, http.StatusNotFound) {
		return &missingError{fmt.Sprintf(format, args...)}
	}
	return err
}

func isStatus(err error, status int) bool {
	refused, ok := errors.AsType[*client.Error](err)
	return ok && refused.Problem && refused.Status == status
}

func (c *apiFlags) remote(std streams) (*api, error) {
	if c.By != "" {
		return nil, tracker.Fieldf("--by", "goes with --mongo-uri: a server knows who calls by the token")
	}
	token, from := os.Getenv(tokenEnv), tokenEnv
	if token == "" && c.TokenFile != "" {
		text, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		token, from = string(bytes.TrimSpace(text)), "--token-file"
	}
	switch {
	case token == "":
		return nil, errors.New("no token: set TRIGGERD_TOKEN, or --token-file to a file with one; `triggerd tokens create` makes them")
	case !strings.HasPrefix(token, server.TokenPrefix) || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, fmt.Errorf("%s: must hold a token: %s and 43 characters", from, server.TokenPrefix)
	}
	cl, err := client.New(client.Params{URL: c.URL, Token: token, UserAgent: "triggerd/" + version})
	if err != nil {
		return nil, fmt.Errorf("--url: %w", err)
	}
	return &api{Client: cl, streams: std, remote: true}, nil
}

// by is who works on a database.
func (c *apiFlags) by() string {
	if c.By != "" {
		return c.By
	}
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return "cli:" + name
}

// noteFlag says why something is done.
type noteFlag struct {
	Note string `env:"-" help:"Why; it stays on what it is about." placeholder:"TEXT"`
}

// tenantFlag names the tenant.
type tenantFlag struct {
	Tenant string `help:"The tenant." required:"" placeholder:"ID"`
}

func checkTenant(id string) error {
	if !tracker.ValidTenantID(id) {
		return tracker.Fieldf("--tenant", "must match [a-z0-9][a-z0-9-]{0,62}")
	}
	return nil
}

// of opens the API, once the tenant's id is well formed.
func (f *tenantFlag) of(ctx context.Context, c *apiFlags, std streams, do func(*api) error) error {
	if err := checkTenant(f.Tenant); err != nil {
		return err
	}
	return c.with(ctx, std, do)
}

// path is that of something of the tenant's.
func (f *tenantFlag) path(segments ...string) string { return tenantPath(f.Tenant, segments...) }

func tenantPath(tenant string, segments ...string) string {
	return client.Path(append([]string{"tenants", tenant}, segments...)...)
}
