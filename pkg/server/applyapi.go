package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/server/apply"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// applyBodyMaxBytes bounds a file of a MiB, as JSON writes it, with its secrets.
const applyBodyMaxBytes = 8 << 20

// ApplyBody is a triggers.yaml, and the secrets that it names. The server reads
// neither its own environment nor its files for them.
type ApplyBody struct {
	File    string        `json:"file" maxLength:"1048576" format:"multiline" doc:"the text of a triggers.yaml"`
	Secrets []ApplySecret `json:"secrets,omitempty" maxItems:"20000" doc:"the secrets that the file names"`
	DryRun  bool          `json:"dry_run,omitempty" doc:"check everything, say what would change, and change nothing"`
}

// ApplySecret is one secret of an ApplyBody.
type ApplySecret struct {
	Env  string `json:"env,omitempty" maxLength:"4096" doc:"the variable that the file takes it from"`
	File string `json:"file,omitempty" maxLength:"4096" doc:"or the path that the file takes it from, as it stands there"`
	Text string `json:"text" maxLength:"4096" format:"multiline" doc:"the secret, without the line ends after it; it is shown nowhere"`
}

func (a *API) registerApply(api huma.API) {
	bounded := func(o *huma.Operation) { o.MaxBodyBytes = applyBodyMaxBytes }
	huma.Post(api, "/v1/apply", func(ctx context.Context, in *struct{ Body ApplyBody }) (*one[apply.Result], error) {
		return a.apply(ctx, "", &in.Body)
	}, named("apply-fleet", "Make what there is agree with a triggers.yaml. For admins."), bounded, forAdmins)
	huma.Post(api, "/v1/tenants/{tenant}/apply", func(ctx context.Context, in *struct {
		TenantInput
		Body ApplyBody
	},
	) (*one[apply.Result], error) {
		return a.apply(ctx, in.Tenant, &in.Body)
	}, named("apply-tenant", "Make what the tenant has agree with a triggers.yaml, which may describe that tenant alone."), bounded)
	huma.Get(api, "/v1/tenants/{tenant}/export", func(ctx context.Context, in *struct{ TenantInput }) (*one[apply.Exported], error) {
		out, err := apply.Export(ctx, in.Tenant, a.applyParams())
		if err != nil {
			return nil, a.fail(err)
		}
		return &one[apply.Exported]{*out}, nil
	}, named("export-tenant", "The tenant as a triggers.yaml, without secrets. Applied again it changes nothing."))
}

func (a *API) applyParams() apply.Params {
	return apply.Params{Store: a.Store, Sealer: a.Sealer, Clock: a.Store, CheckURL: launch.CheckURL, ParseSecret: launch.ParseSecret}
}

func (a *API) apply(ctx context.Context, tenant string, body *ApplyBody) (*one[apply.Result], error) {
	file, err := apply.Parse("file", []byte(body.File))
	if err != nil {
		return nil, a.refusedFile(err)
	}
	p := a.applyParams()
	p.Tenant, p.DryRun, p.Secrets = tenant, body.DryRun, make(map[apply.SecretRef]string, len(body.Secrets))
	for _, s := range body.Secrets {
		p.Secrets[apply.SecretRef{Env: s.Env, File: s.File}] = s.Text
	}
	result, err := apply.Apply(ctx, file, p)
	if !body.DryRun { // what was written before an error stays
		for _, c := range result.Changes {
			if c.Action != apply.Unchanged {
				noteChange(ctx, c.Kind, c.ID, applied(c.Before), applied(c.After))
			}
		}
	}
	if err != nil {
		return nil, a.refusedFile(err)
	}
	if result.Changes == nil {
		result.Changes = []apply.Change{}
	}
	return &one[apply.Result]{result}, nil
}

// refusedFile shows what is wrong with a file, by line.
func (a *API) refusedFile(err error) error {
	var errs apply.Errors
	if !errors.As(err, &errs) {
		return a.fail(err)
	}
	p := newProblem(http.StatusUnprocessableEntity, "the file is refused")
	for i, e := range errs {
		if i == apply.ErrorsShown {
			p.Detail = "the file is refused; these are the first errors"
			break
		}
		p.Errors = append(p.Errors, ProblemField{Field: e.Path, Message: e.Message, Line: e.Line})
	}
	return p
}

// applied is a thing as the API shows it, for the audit log.
func applied(thing any) any {
	switch v := thing.(type) {
	case *tracker.Board:
		return newBoard(v)
	case *trigger.Bot:
		return newBot(v)
	case *trigger.Hook:
		return newHook(v, nil)
	case *trigger.Subscription:
		return newSubscription(v, nil)
	case *trigger.Projection:
		return newProjection(v, nil)
	}
	return thing // a tenant
}
