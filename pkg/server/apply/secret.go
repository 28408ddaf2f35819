package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Limits of the text of a secret.
const (
	SecretMaxBytes     = config.SecretMaxBytes
	HookSecretMinBytes = config.HookSecretMinBytes
)

// SecretRef says where a secret's text is: one of the two.
type SecretRef struct{ Env, File string }

// field is the field of the reference that says where.
func (r SecretRef) field() string {
	if r.Env != "" {
		return ".env"
	}
	return ".file"
}

// read returns the text of a secret, without the line ends that files end with,
// or why there is none. Neither the text nor the name of the place is repeated:
// somebody may have written the secret where its name belongs.
func (p *Params) read(ref SecretRef) (text, why string) {
	switch {
	case p.Secrets != nil:
		given, ok := p.Secrets[ref]
		if !ok {
			return "", "its text is not among the secrets of the call"
		}
		text = given
	case ref.Env != "":
		v, ok := p.Getenv(ref.Env)
		if !ok {
			return "", "the environment variable is not set"
		}
		text = v
	default:
		v, err := p.ReadFile(ref.File)
		if err != nil {
			return "", "the file can't be read" + fileReason(err)
		}
		text = string(v)
	}
	text = strings.TrimRight(text, "\r\n")
	switch {
	case text == "":
		return "", "the secret is empty"
	case len(text) > SecretMaxBytes:
		return "", fmt.Sprintf("the secret is longer than %d bytes", SecretMaxBytes)
	}
	return text, ""
}

// secret reads a secret and parses its text.
func (pl *plan) secret(ref secretRef, parse func(string) ([]byte, error)) ([]byte, bool) {
	path := ref.path + ref.field()
	text, why := pl.read(ref.SecretRef)
	if why != "" {
		pl.errorf(path, "%s", why)
		return nil, false
	}
	secret, err := parse(text)
	if err != nil {
		pl.errorf(path, "the secret is refused%s", reason(err, text))
		return nil, false
	}
	return secret, true
}

// Secrets reads the texts of the secrets that the file names, by getenv and
// readFile, for somebody else who applies it. An initial one that can't be read
// is left out: it may not be needed. The error is an Errors.
func (f *File) Secrets(getenv func(string) (string, bool), readFile func(string) ([]byte, error)) (map[SecretRef]string, error) {
	p := Params{Getenv: getenv, ReadFile: readFile}
	out := make(map[SecretRef]string)
	var errs Errors
	for _, ref := range f.secretRefs() {
		text, why := p.read(ref.SecretRef)
		if why == "" && !utf8.ValidString(text) {
			why = "the secret must be text, in UTF-8"
		}
		switch {
		case why == "":
			out[ref.SecretRef] = text
		case !ref.initial:
			errs = append(errs, f.errorf(ref.path+ref.field(), "%s", why))
		}
	}
	return out, errs.orNil()
}

func (f *File) secretRefs() (refs []secretRef) {
	for _, t := range f.tenants {
		for _, b := range t.bots {
			refs = append(refs, b.secret)
		}
		for _, h := range t.hooks {
			refs = append(refs, h.secret)
		}
	}
	return slices.DeleteFunc(refs, func(r secretRef) bool { return r.SecretRef == SecretRef{} })
}

// Tenants returns the ids of the tenants that the file describes.
func (f *File) Tenants() []string {
	ids := make([]string, len(f.tenants))
	for i := range f.tenants {
		ids[i] = f.tenants[i].id
	}
	return ids
}

// seal returns what is to be stored for the owner's secret: what is stored
// already if that is the same secret, so that a file applied again changes
// nothing.
func (pl *plan) seal(ref secretRef, owner string, stored trigger.Sealed, secret []byte) (sealed trigger.Sealed, changed bool) {
	if stored != "" {
		if same, ok := pl.same(ref, owner, stored, secret); !ok || same {
			return stored, false
		}
	}
	sealed, err := pl.Sealer.Seal(owner, secret)
	if err != nil {
		pl.errorf(ref.path, "the secret can't be sealed%s", reason(err, string(secret)))
	}
	return sealed, true
}

// same reports whether the secret is the stored one, and says so if that can't
// be told: whoever runs this may have the wrong key, and would shut the replicas
// out.
func (pl *plan) same(ref secretRef, owner string, stored trigger.Sealed, secret []byte) (same, ok bool) {
	same, err := config.SameSecret(pl.Sealer, owner, stored, secret)
	if err != nil {
		pl.errorf(ref.path, "the stored secret can't be opened%s", reason(err, string(secret)))
	}
	return same, err == nil
}

// keepURL returns the URL that is meant for a bot, after its check: the stored
// one if the file has that as the API shows it.
func (pl *plan) keepURL(path, stored, given string) string {
	meant, err := config.KeepURL(stored, given)
	if err != nil {
		pl.errorf(path, "is refused%s", reason(err))
		return stored
	}
	pl.checkURL(path, meant)
	return meant
}

// checkURL checks a bot's URL. URLs are not repeated: people put tokens in
// them.
func (pl *plan) checkURL(path, raw string) {
	u, err := url.Parse(raw)
	switch {
	case err != nil: // it repeats the URL
		pl.errorf(path, "is not a URL")
	case u.User != nil:
		pl.errorf(path, "must not have a user or a password in it")
	default:
		if err := pl.CheckURL(raw); err != nil {
			// The host may show; a path as short as "launch" is no token.
			secrets := []string{u.RawQuery, u.Fragment}
			if p := u.EscapedPath(); len(p) > leakBytes {
				secrets = append(secrets, p)
			}
			pl.errorf(path, "is refused%s", reason(err, secrets...))
		}
	}
}

// leakBytes is how long a piece of a secret may show by chance.
const leakBytes = 8

// reason is what another part's error says, to be appended to a message:
// nothing if it would repeat one of the texts, or a piece of one.
func reason(err error, secrets ...string) string {
	msg := err.Error()
	if fe, ok := errors.AsType[*tracker.FieldError](err); ok {
		msg = fe.Want
	}
	for _, s := range secrets {
		if s != "" && len(s) <= leakBytes && strings.Contains(msg, s) {
			return ""
		}
		for i := 0; i+leakBytes < len(s); i++ {
			// One byte more than leakBytes.
			if strings.Contains(msg, s[i:i+leakBytes+1]) {
				return ""
			}
		}
	}
	return ": " + msg
}

// fileReason is why a file can't be read, without its path.
func fileReason(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return ": " + pe.Err.Error()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return ": " + fs.ErrNotExist.Error()
	}
	return ""
}
