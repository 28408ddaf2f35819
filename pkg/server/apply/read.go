package apply

import (
	"go.yaml.in/yaml/v3"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func (p *parser) root(n *yaml.Node) {
	p.file.lines[""] = n.Line
	root := p.object(n, "", rootSchema)
	root.has("tenants")
	ids := names{}
	root.each("tenants", TenantsMax, func(n *yaml.Node, path string) {
		o := p.object(n, path, tenantSchema)
		t := tenantSpec{path: path, id: o.slug("id")}
		t.name = o.title("name", t.id)
		ids.add(o, "id", t.id)
		p.boards(o, &t)
		p.bots(o, &t)
		p.hooks(o, &t)
		p.subscriptions(o, &t)
		p.projections(o, &t)
		p.file.tenants = append(p.file.tenants, t)
	})
}

func (p *parser) boards(tenant object, t *tenantSpec) {
	taken := names{}
	tenant.each("boards", BoardsMax, func(n *yaml.Node, path string) {
		o := p.object(n, path, boardSchema)
		b := boardSpec{path: path, name: o.slug("name")}
		taken.add(o, "name", b.name)
		ids := names{}
		o.each("columns", ColumnsMax, func(n *yaml.Node, path string) {
			o := p.object(n, path, columnSchema)
			c := tracker.Column{ID: o.slug("id"), Terminal: o.boolean("terminal", false)}
			c.Name = o.title("name", c.ID)
			ids.add(o, "id", c.ID)
			b.columns = append(b.columns, c)
		})
		if o.has("columns") && o.fields["columns"].Kind == yaml.SequenceNode && len(o.fields["columns"].Content) == 0 {
			p.errorf(o.at("columns"), "at least one column is required")
		}
		t.boards = append(t.boards, b)
	})
}

func (p *parser) bots(tenant object, t *tenantSpec) {
	taken := names{}
	tenant.each("bots", BotsMax, func(n *yaml.Node, path string) {
		o := p.object(n, path, botSchema)
		b := botSpec{path: path, name: o.slug("name"), url: o.must("url"), secret: o.secret()}
		taken.add(o, "name", b.name)
		switch b.replay = trigger.ReplayClass(o.text("replay")); b.replay {
		case "":
			b.replay = trigger.ReplaySafe
		case trigger.ReplaySafe, trigger.ReplayUnsafe:
		default:
			p.errorf(o.at("replay"), "must be %s or %s", trigger.ReplaySafe, trigger.ReplayUnsafe)
		}
		t.bots = append(t.bots, b)
	})
}

// secret reads where the owner's secret is to be found, if that is said.
func (o object) secret() secretRef {
	const how = "must be {env: NAME} or {file: path}"
	ref := secretRef{path: o.at("secret")}
	n := o.fields["secret"]
	if n == nil {
		return ref
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() != "!!null" {
		o.p.errorf(ref.path, "a secret's text does not belong in this file: "+how)
		return ref
	}
	s := o.p.object(n, ref.path, secretSchema)
	ref.Env, ref.File, ref.initial = s.text("env"), s.text("file"), s.boolean("initial", false)
	if s.ok && (s.fields["env"] == nil) == (s.fields["file"] == nil) {
		o.p.errorf(ref.path, how+", one of the two")
		ref.Env, ref.File = "", ""
	}
	return ref
}

func (p *parser) hooks(tenant object, t *tenantSpec) {
	taken := names{}
	tenant.each("hooks", HooksMax, func(n *yaml.Node, path string) {
		o := p.object(n, path, hookSchema)
		h := hookSpec{
			path: path, name: o.slug("name"), provider: o.must("provider"), board: o.must("board"), secret: o.secret(),
		}
		taken.add(o, "name", h.name)
		if h.provider != "" && h.provider != config.ProviderGitHub {
			p.errorf(o.at("provider"), "must be %s", config.ProviderGitHub)
		}
		if o.has("columns") {
			c := p.object(o.fields["columns"], o.at("columns"), hookColumnsSchema)
			h.open, h.closed = c.must("open"), c.must("closed")
		}
		t.hooks = append(t.hooks, h)
	})
}

func (p *parser) subscriptions(tenant object, t *tenantSpec) {
	taken := names{}
	tenant.each("subscriptions", SubscriptionsMax, func(n *yaml.Node, path string) {
		o := p.object(n, path, subscriptionSchema)
		s := subscriptionSpec{path: path, bot: o.must("bot")}
		s.want = trigger.Subscription{
			Name: o.slug("name"), Enabled: o.boolean("enabled", true),
			Mode: trigger.Mode(o.text("mode")), ToColumn: o.text("to_column"),
			When: o.text("when"), Consume: o.texts("consume"), Rank: o.integer("rank"),
			Args: o.textMap("args"), Vars: o.textMap("vars"),
		}
		if o.fields["max_per_minute"] != nil {
			n := o.integer("max_per_minute")
			s.want.MaxPerMinute = &n
		}
		taken.add(o, "name", s.want.Name)
		p.on(o, &s)
		if n := o.fields["if"]; n != nil {
			c := p.object(n, o.at("if"), ifSchema)
			s.want.If = trigger.Conditions{
				Columns: c.texts("columns"), LabelsAll: c.texts("labels_all"), LabelsAny: c.texts("labels_any"),
				LabelsNone: c.texts("labels_none"), Assignees: c.texts("assignees"),
			}
		}
		if _, given := p.file.lines[path+".on.board"]; !given && config.NeedsBoard(&s.want) {
			p.errorf(path+".on.board", config.BoardNeeded)
		}
		t.subscriptions = append(t.subscriptions, s)
	})
}

func (p *parser) on(sub object, s *subscriptionSpec) {
	n := sub.fields["on"]
	if n == nil {
		return
	}
	o := p.object(n, sub.at("on"), onSchema)
	s.board = o.text("board")
	s.want.On = trigger.EventFilter{From: o.text("from"), To: o.text("to")}
	for _, k := range o.texts("kinds") {
		s.want.On.Kinds = append(s.want.On.Kinds, tracker.Kind(k))
	}
	for _, src := range o.texts("sources") {
		s.want.On.Sources = append(s.want.On.Sources, trigger.Source(src))
	}
	o.each("actors", listMax, func(n *yaml.Node, path string) {
		var a actorRef
		if n.Kind == yaml.MappingNode {
			a.bot = p.object(n, path, actorSchema).must("bot")
		} else if p.is(n, path, "!!str", "a login, or {bot: name}") {
			a.login = n.Value
		}
		s.actors = append(s.actors, a)
	})
}

func (p *parser) projections(tenant object, t *tenantSpec) {
	taken := names{}
	tenant.each("projections", ProjectionsMax, func(n *yaml.Node, path string) {
		o := p.object(n, path, projectionSchema)
		s := projectionSpec{path: path, name: o.slug("name"), enabled: o.boolean("enabled", true), from: o.must("from"), to: o.must("to")}
		taken.add(o, "name", s.name)
		if o.has("columns") {
			s.columns = o.textMap("columns")
		}
		t.projections = append(t.projections, s)
	})
}
